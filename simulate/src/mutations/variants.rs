//! One device library that holds all planted bugs, and is compiled once: `gpuvm_sim::variant()` chooses one when kernels run.
//!
//! Statements that a bug changes stand twice then, as they are and as the bug has them, and the number says which of them run. A bug
//! that declares something changes all that follows in its block, since that may use what is declared.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use gpuvm_gpu::back_end::{Token, TokenKind, tokens};

/// A replacement of bytes, without what the old and the new text begin and end with alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Edit {
    at: Range<usize>,
    to: &'static str,
}

impl Edit {
    /// `from`, which begins at byte `start`, becomes `to`.
    pub(super) fn new(start: usize, from: &str, to: &'static str) -> Self {
        let same = |(a, b): &(u8, u8)| a == b;
        let before = from.bytes().zip(to.bytes()).take_while(same).count();
        let most = from.len().min(to.len()) - before;
        let behind = from
            .bytes()
            .rev()
            .zip(to.bytes().rev())
            .take(most)
            .take_while(same)
            .count();
        Self {
            at: start + before..start + from.len() - behind,
            to: &to[before..to.len() - behind],
        }
    }
}

/// What one number changes in a run of statements.
struct Choice {
    run: Range<usize>,
    number: u32,
    edits: Vec<Edit>,
}

/// `text` with the edits of all numbers, each of which counts under its number alone. Which of them has no place among statements, if
/// one has none.
pub(super) fn with_all(text: &str, all: &[(u32, Edit)]) -> Result<String, usize> {
    let code = Code::of(text);
    let mut choices: Vec<Choice> = Vec::new();
    for (at, (number, edit)) in all.iter().enumerate() {
        let mut choice = Choice {
            run: code.as_ref().and_then(|code| code.run_of(edit)).ok_or(at)?,
            number: *number,
            edits: vec![edit.clone()],
        };
        let meets = |other: &Choice, choice: &Choice| other.number == *number && overlap(&other.run, &choice.run);
        // Edits of one number that meet are made together.
        while let Some(met) = choices.iter().position(|other| meets(other, &choice)) {
            let other = choices.remove(met);
            choice.run = hull(&choice.run, &other.run);
            choice.edits.extend(other.edits);
        }
        choices.push(choice);
    }
    let mut out = String::with_capacity(2 * text.len());
    render(text, 0..text.len(), choices, &mut out);
    Ok(out)
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a == b || (a.start < b.end && b.start < a.end)
}

fn hull(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    a.start.min(b.start)..a.end.max(b.end)
}

/// Appends `text[within]` with the choices, all of which lie in it.
fn render(text: &str, within: Range<usize>, mut choices: Vec<Choice>, out: &mut String) {
    choices.sort_by_key(|choice| {
        (
            choice.run.start,
            !choice.run.is_empty(),
            Reverse(choice.run.end),
            choice.number,
        )
    });
    let mut done = within.start;
    while !choices.is_empty() {
        let mut span = choices[0].run.clone();
        let mut here = vec![choices.remove(0)];
        while let Some(met) = choices.iter().position(|choice| overlap(&choice.run, &span)) {
            span = hull(&span, &choices[met].run);
            here.push(choices.remove(met));
        }
        let runs: Vec<Range<usize>> = here.iter().map(|choice| choice.run.clone()).collect();
        let is_within = |a: &Range<usize>, b: &Range<usize>| a != b && b.start <= a.start && a.end <= b.end;
        let (inner, outer): (Vec<Choice>, Vec<Choice>) = here
            .into_iter()
            .partition(|choice| runs.iter().any(|run| is_within(&choice.run, run)));
        // A number's branch replaces the whole span, so it has all edits that its number has there.
        let mut branches: BTreeMap<u32, Vec<Edit>> = BTreeMap::new();
        for choice in outer {
            branches.entry(choice.number).or_default().extend(choice.edits);
        }
        let (more, inner): (Vec<Choice>, Vec<Choice>) = inner
            .into_iter()
            .partition(|choice| branches.contains_key(&choice.number));
        for choice in more {
            branches.entry(choice.number).or_default().extend(choice.edits);
        }
        out.push_str(&text[done..span.start]);
        out.push('\n');
        for (number, edits) in &branches {
            out.push_str(&format!("if (gpuvm_sim::variant() == {number}) {{\n"));
            out.push_str(&changed(text, &span, edits));
            out.push_str("\n} else ");
        }
        out.push_str("{\n");
        done = span.end;
        render(text, span, inner, out);
        out.push_str("\n}\n");
    }
    out.push_str(&text[done..within.end]);
}

/// `text[within]` after the edits, which lie in it.
fn changed(text: &str, within: &Range<usize>, edits: &[Edit]) -> String {
    let mut edits: Vec<&Edit> = edits.iter().collect();
    edits.sort_by_key(|edit| edit.at.start);
    let (mut out, mut done) = (String::new(), within.start);
    for edit in edits {
        out.push_str(&text[done..edit.at.start]);
        out.push_str(edit.to);
        done = edit.at.end;
    }
    out.push_str(&text[done..within.end]);
    out
}

/// C++ as far as its statements go.
struct Code<'a> {
    text: &'a str,
    /// Comments among them.
    all: Vec<Token>,
    /// What is read: neither white space nor preprocessor lines.
    tokens: Vec<Token>,
    /// By token: the bracket that closes it, else itself.
    closing: Vec<usize>,
}

impl<'a> Code<'a> {
    /// None where its brackets do not match.
    fn of(text: &'a str) -> Option<Self> {
        let all = tokens(text);
        let mut code = Self {
            text,
            tokens: Vec::new(),
            closing: Vec::new(),
            all,
        };
        let (mut begins, mut directive, mut open) = (true, false, Vec::new());
        for token in &code.all {
            match token.kind {
                TokenKind::Newline => (begins, directive) = (true, false),
                TokenKind::Blank => {}
                _ => {
                    let word = &text[token.start..token.end];
                    directive |= begins && word == "#";
                    begins = false;
                    if directive {
                        continue;
                    }
                    let number = code.tokens.len();
                    code.tokens.push(*token);
                    code.closing.push(number);
                    match word {
                        "(" | "[" | "{" => open.push((number, word)),
                        ")" | "]" | "}" => {
                            let (from, with) = open.pop()?;
                            if !matches!((with, word), ("(", ")") | ("[", "]") | ("{", "}")) {
                                return None;
                            }
                            code.closing[from] = number;
                        }
                        _ => {}
                    }
                }
            }
        }
        open.is_empty().then_some(code)
    }

    fn word(&self, token: usize) -> &'a str {
        self.tokens
            .get(token)
            .map_or("", |token| &self.text[token.start..token.end])
    }

    fn bytes(&self, of: &Range<usize>) -> Range<usize> {
        self.tokens[of.start].start..self.tokens[of.end - 1].end
    }

    /// The token behind the statement that begins at `at` and ends before `limit`.
    fn end_of(&self, at: usize, limit: usize) -> Option<usize> {
        // Behind the bracket that opens there.
        let past = |open: usize| self.closing.get(open).map(|close| close + 1);
        let end = match self.word(at) {
            "{" => past(at)?,
            "if" => {
                let condition = at + 1 + usize::from(self.word(at + 1) == "constexpr");
                let then = self.end_of(past(condition)?, limit)?;
                match then < limit && self.word(then) == "else" {
                    true => self.end_of(then + 1, limit)?,
                    false => then,
                }
            }
            "for" | "while" | "switch" => self.end_of(past(at + 1)?, limit)?,
            "do" => past(self.end_of(at + 1, limit)? + 1)? + 1,
            // It has no semicolon behind it.
            "GPUVM_TIMELINE_ONLY" => past(at + 1)?,
            _ => {
                let mut token = at;
                while self.word(token) != ";" {
                    token = past(token)?;
                    if token >= limit {
                        return None;
                    }
                }
                token + 1
            }
        };
        (end <= limit).then_some(end)
    }

    /// The statements that tokens from `first` to `limit` are; None if they are not whole ones.
    fn statements(&self, first: usize, limit: usize) -> Option<Vec<Range<usize>>> {
        let (mut at, mut found) = (first, Vec::new());
        while at < limit {
            let end = self.end_of(at, limit)?;
            found.push(at..end);
            at = end;
        }
        Some(found)
    }

    /// Whether the brace `open` begins statements: not those of a namespace, a class, an initialiser or a switch.
    fn has_statements(&self, open: usize) -> bool {
        let Some(mut before) = open.checked_sub(1) else {
            return false;
        };
        while matches!(self.word(before), "const" | "mutable" | "noexcept") && before > 0 {
            before -= 1;
        }
        match self.word(before) {
            "else" | "do" | "]" => true,
            ")" => {
                let from = self.closing.iter().position(|&close| close == before);
                from.is_some_and(|from| from > 0 && self.word(from - 1) != "switch")
            }
            ";" | "{" | "}" => {
                let around = (0..open)
                    .rev()
                    .find(|&at| self.word(at) == "{" && self.closing[at] > open);
                around.is_some_and(|around| self.has_statements(around))
            }
            _ => false,
        }
    }

    /// The least run of whole statements of one block, in bytes, that an edit changes to whole statements.
    fn run_of(&self, edit: &Edit) -> Option<Range<usize>> {
        let around = (0..self.tokens.len()).rev().filter(|&open| {
            let close = self.closing[open];
            self.word(open) == "{" && self.tokens[open].end <= edit.at.start && edit.at.end <= self.tokens[close].start
        });
        around
            .filter(|&open| self.has_statements(open))
            .find_map(|open| self.run_in(edit, open))
    }

    /// That run in the block that the brace `open` begins.
    fn run_in(&self, edit: &Edit, open: usize) -> Option<Range<usize>> {
        let close = self.closing[open];
        let statements = self.statements(open + 1, close)?;
        let first = statements.partition_point(|of| self.bytes(of).end <= edit.at.start);
        let behind = statements.partition_point(|of| self.bytes(of).start < edit.at.end.max(edit.at.start + 1));
        let behind = match first < behind && edit.at.is_empty() && self.bytes(&statements[first]).start == edit.at.start
        {
            // Between two statements.
            true => first,
            false => behind.max(first),
        };
        // Also with the one behind it: what is put before it may belong to it.
        [behind, behind + 1].into_iter().find_map(|behind| {
            let run = statements.get(first..behind)?;
            let mut bytes = run
                .iter()
                .fold(edit.at.clone(), |bytes, of| hull(&bytes, &self.bytes(of)));
            // No comment is cut.
            for token in &self.all {
                if overlap(&(token.start..token.end), &bytes) && token.kind == TokenKind::Blank {
                    bytes = hull(&bytes, &(token.start..token.end));
                }
            }
            let text = changed(self.text, &bytes, std::slice::from_ref(edit));
            let new = Code::of(&text)?;
            let made = new.statements(0, new.tokens.len())?;
            if made.iter().any(|of| new.declares(of)) || run.iter().any(|of| self.declares(of)) {
                bytes.end = self.tokens[close].start;
            }
            is_whole(&self.text[bytes.clone()]).then_some(bytes)
        })
    }

    /// Whether statements behind this one may use what it declares.
    fn declares(&self, of: &Range<usize>) -> bool {
        let is_name = |at: usize| {
            let of_word = self.tokens.get(at).is_some_and(|token| token.kind == TokenKind::Word);
            of_word && !matches!(self.word(at), "else" | "new")
        };
        match self.word(of.start) {
            "return" | "if" | "for" | "while" | "switch" | "do" | "break" | "continue" | "delete" | "goto" => {
                return false;
            }
            "const" | "constexpr" | "static" | "auto" | "using" | "typedef" | "struct" | "unsigned" => return true,
            _ => {}
        }
        // A type and a name: `a::b<c>* d`.
        let mut at = of.start;
        while is_name(at) && self.word(at + 1) == ":" && self.word(at + 2) == ":" {
            at += 3;
        }
        if !is_name(at) {
            return false;
        }
        at += 1;
        if self.word(at) == "<" {
            let closes = (at..of.end).find(|&at| self.word(at) == ">");
            at = closes.map_or(of.end, |at| at + 1);
        }
        while matches!(self.word(at), "*" | "&" | "const") {
            at += 1;
        }
        at < of.end && is_name(at)
    }
}

/// Whether each `#if` in it has its `#endif` there.
fn is_whole(text: &str) -> bool {
    let mut depth = 0;
    for line in text.lines().map(str::trim_start).filter(|line| line.starts_with('#')) {
        match line {
            _ if line.starts_with("#if") => depth += 1,
            _ if line.starts_with("#e") && depth == 0 => return false,
            _ if line.starts_with("#endif") => depth -= 1,
            _ => {}
        }
    }
    depth == 0
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gpuvm::{CompileOptions, LaunchConfig, Transport, Vm};
    use gpuvm_sim_gpu::{Mode, SimGpu, SimOptions};

    use super::{Code, Edit, Range, with_all};
    use crate::bench::{Bench, Kernels};

    const TEXT: &str = "
constexpr int kSize = 4;
struct Pair {
    int a = 1;
    __device__ int sum(int c) const { return a + c; }
};
__device__ int walk(int n) {
    int sum = 0;
    // What follows counts.
    for (int at = 0; at < n; ++at) {
        if (at & 1) sum += 10;
        else sum += 1;
        int twice = 2 * at;
        sum += twice;
    }
    sum += [](int x) { return x; }(100);
    return Pair{}.sum(sum);
}
";
    const KERNEL: Kernels = Kernels {
        name: "walk.cu",
        text: "#include \"walk.cuh\"\n__global__ void walks(unsigned* out) { *out = walk(4); }\n",
    };

    fn edit(from: &str, to: &'static str) -> Edit {
        Edit::new(TEXT.find(from).expect("it is there"), from, to)
    }

    #[test]
    fn the_chosen_number_alone_counts() {
        let edits = [
            (1, edit("sum += 10;", "sum += 20;")),
            (2, edit("int twice = 2 * at;", "int thrice = 3 * at;")),
            (2, edit("sum += twice;", "sum += thrice;")),
            (3, edit("        sum += twice;\n", "")),
            (
                4,
                edit(
                    "    // What follows counts.\n",
                    "    // What follows counts.\n    int more = 1000;\n    sum += more;\n",
                ),
            ),
            (5, edit("return x;", "return x + 5;")),
            (6, edit("return a + c;", "return a - c;")),
            (
                7,
                edit(
                    "        if (at & 1) sum",
                    "        if (at == 2) continue;\n        if (at & 1) sum",
                ),
            ),
            (8, edit("if (at & 1) sum", "if (at & 2) sum")),
        ];
        let text = with_all(TEXT, &edits).expect("all have their places");
        // As it is: 1 + 10 + 1 + 10, twice 0 + 1 + 2 + 3, 100 and 1.
        let expected = [135, 155, 141, 123, 1135, 140, 1 - 134, 130, 135];
        for (variant, expected) in (0..).zip(expected) {
            let simulated = SimOptions {
                variant,
                ..SimOptions::default()
            };
            let gpu = SimGpu::builder().mode(Mode::Seeded(0)).options(simulated).build();
            let vm = Vm::builder().gpu(Arc::new(gpu.expect("a GPU")) as Arc<dyn gpuvm_gpu::Gpu>);
            let options = CompileOptions {
                headers: vec![("walk.cuh".to_owned(), text.clone())],
                ..CompileOptions::default()
            };
            let bench = Bench::with(vm.transport(Transport::Direct), KERNEL, &options).expect("it compiles");
            let out = bench.vm.buffer::<u32>(1).expect("a buffer");
            let walks = bench.kernel("walks").expect("a kernel");
            walks
                .launch(LaunchConfig::new(1, 1), (&out,))
                .expect("a launch")
                .sync()
                .expect("its end");
            assert_eq!(out.to_vec().expect("its word"), [expected as u32], "variant {variant}");
        }
    }

    /// The words of `text` where `chosen` is the number, without braces: those of choices are among them.
    fn words_of(text: &str, chosen: u32) -> Vec<String> {
        let code = Code::of(text).expect("its brackets match");
        let (mut words, mut at) = (Vec::new(), 0);
        let mut skipped: Vec<Range<usize>> = Vec::new();
        while at < code.tokens.len() {
            if let Some(gap) = skipped.iter().find(|gap| gap.start == at) {
                at = gap.end;
                continue;
            }
            let is_choice = code.word(at) == "if" && code.word(at + 2) == "gpuvm_sim";
            if !is_choice {
                words.push(code.word(at).to_owned());
                at += 1;
                continue;
            }
            // if ( gpuvm_sim : : variant ( ) = = number ) { ... } else
            let (condition, open) = (at + 1, code.closing[at + 1] + 1);
            let number: u32 = code.word(code.closing[condition] - 1).parse().expect("a number");
            let close = code.closing[open];
            at = match number == chosen {
                false => close + 2,
                true => {
                    let mut end = close + 2;
                    while code.word(end) == "if" {
                        end = code.closing[code.closing[end + 1] + 1] + 2;
                    }
                    skipped.push(close..code.closing[end] + 1);
                    open
                }
            };
        }
        words.retain(|word| word != "{" && word != "}");
        words
    }

    #[cfg(feature = "mutations")]
    #[test]
    fn each_planted_bug_is_in_the_library_of_all_as_it_is_alone() {
        use crate::mutations::{all, with_all};
        let whole = with_all(all()).expect("all have their places");
        for (number, mutation) in (1..).zip(all()) {
            let alone = with_all(std::iter::once(mutation)).expect("it has its places");
            for (header, text) in &whole {
                let (_, as_it_is) = gpuvm_gpu::headers()
                    .iter()
                    .find(|(name, _)| name == header)
                    .expect("it is a header");
                let expected = match alone.iter().find(|(name, _)| name == header) {
                    Some((_, text)) => words_of(text, 1),
                    None => words_of(as_it_is, 0),
                };
                assert!(
                    words_of(text, number) == expected,
                    "{} in {header}:\n{}\ninstead of\n{}",
                    mutation.name,
                    words_of(text, number).join(" "),
                    expected.join(" ")
                );
                assert_eq!(words_of(text, 0), words_of(as_it_is, 0), "{header}");
            }
        }
    }

    #[test]
    fn what_is_outside_of_statements_has_no_place() {
        for (from, to) in [("kSize = 4", "kSize = 5"), ("int a = 1;", "int a = 2;")] {
            let all = [(1, edit("return x;", "return x + 5;")), (2, edit(from, to))];
            assert_eq!(with_all(TEXT, &all), Err(1), "{from}");
        }
    }
}
