//! The small changes that CUDA source needs before a host compiler reads it. They keep every line where it is.

/// A piece of C++ source: what kind it is and where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Word,
    Punctuation,
    /// A string, character or raw string literal.
    Literal,
    /// White space, comment or line continuation.
    Blank,
    /// A line break that ends a preprocessor line, or any other.
    Newline,
}

#[derive(Clone, Copy, Debug)]
struct Token {
    kind: Kind,
    start: usize,
    end: usize,
}

fn tokens(text: &str) -> Vec<Token> {
    let bytes = text.as_bytes();
    let mut out = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        let rest = &bytes[at..];
        let kind = match rest[0] {
            b'\n' => {
                at += 1;
                Kind::Newline
            }
            b'\\' if rest.get(1) == Some(&b'\n') => {
                at += 2;
                Kind::Blank
            }
            b'/' if rest.get(1) == Some(&b'/') => {
                at += rest.iter().position(|&c| c == b'\n').unwrap_or(rest.len());
                Kind::Blank
            }
            b'/' if rest.get(1) == Some(&b'*') => {
                at += find(rest, b"*/", 2).map_or(rest.len(), |n| n + 2);
                Kind::Blank
            }
            c if c.is_ascii_whitespace() => {
                at += 1;
                Kind::Blank
            }
            b'R' if rest.get(1) == Some(&b'"') => {
                at += raw_string(rest);
                Kind::Literal
            }
            c if c.is_ascii_alphanumeric() || c == b'_' || c >= 0x80 => {
                // A quote inside a number separates digits.
                let number = c.is_ascii_digit();
                let part = |&c: &u8| c.is_ascii_alphanumeric() || c == b'_' || c >= 0x80 || (number && c == b'\'');
                at += rest.iter().position(|c| !part(c)).unwrap_or(rest.len());
                Kind::Word
            }
            quote @ (b'"' | b'\'') => {
                at += quoted(rest, quote);
                Kind::Literal
            }
            _ => {
                at += 1;
                Kind::Punctuation
            }
        };
        out.push(Token { kind, start, end: at });
    }
    out
}

fn find(bytes: &[u8], what: &[u8], from: usize) -> Option<usize> {
    bytes
        .get(from..)?
        .windows(what.len())
        .position(|w| w == what)
        .map(|n| n + from)
}

/// Length of the literal that starts here; a line break ends an unfinished one.
fn quoted(bytes: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 1,
            b'\n' => return at,
            c if c == quote => return at + 1,
            _ => {}
        }
        at += 1;
    }
    bytes.len()
}

fn raw_string(bytes: &[u8]) -> usize {
    let Some(open) = bytes.iter().position(|&c| c == b'(') else {
        return bytes.len();
    };
    let mut close = vec![b')'];
    close.extend_from_slice(&bytes[2..open]);
    close.push(b'"');
    find(bytes, &close, open).map_or(bytes.len(), |n| n + close.len())
}

/// Rewrites `extern __shared__ T name[];` to a reference to the block's dynamic shared memory, and drops a `static` before
/// `__shared__`, which already says so.
pub(crate) fn shared_arrays(text: &str) -> String {
    let all = tokens(text);
    let meaningful: Vec<Token> = all
        .iter()
        .copied()
        .filter(|t| matches!(t.kind, Kind::Word | Kind::Punctuation | Kind::Literal))
        .collect();
    let word = |t: &Token| &text[t.start..t.end];
    let mut out = String::with_capacity(text.len() + 256);
    let mut copied = 0;
    let mut scopes = Scopes::default();
    let mut at = 0;
    while at < meaningful.len() {
        let token = meaningful[at];
        scopes.see(word(&token));
        if matches!(word(&token), "extern" | "static") && token.kind == Kind::Word {
            let end = meaningful[at..]
                .iter()
                .position(|t| matches!(word(t), ";" | "{" | "(" | "="))
                .map(|n| n + at);
            let end = end.map(|e| past_attributes(&meaningful, &word, at, e));
            let is_shared = end.is_some_and(|end| meaningful[at..end].iter().any(|t| word(t) == "__shared__"));
            if let (true, Some(end)) = (is_shared, end) {
                let replacement = if word(&token) == "static" {
                    Some((token.end, String::new()))
                } else {
                    dynamic_array(text, &meaningful[at + 1..end], scopes.in_function())
                        .map(|new| (meaningful[end - 1].end, new))
                };
                if let Some((until, new)) = replacement {
                    out.push_str(&text[copied..token.start]);
                    out.push_str(&new);
                    let lines = text[token.start..until].matches('\n').count();
                    let continued = text[token.start..until].contains("\\\n");
                    out.push_str(&(if continued { "\\\n" } else { "\n" }).repeat(lines));
                    copied = until;
                    while at + 1 < meaningful.len() && meaningful[at + 1].start < until {
                        at += 1;
                    }
                }
            }
        }
        at += 1;
    }
    out.push_str(&text[copied..]);
    out
}

/// The end of a declaration that starts at `at`, when its first bracket at `end` only belongs to an attribute.
fn past_attributes<'a>(all: &[Token], word: &impl Fn(&Token) -> &'a str, at: usize, end: usize) -> usize {
    let mut end = end;
    while end > at && word(&all[end]) == "(" && is_attribute(word(&all[end - 1])) {
        let mut depth = 0;
        let mut i = end;
        while i < all.len() {
            match word(&all[i]) {
                "(" => depth += 1,
                ")" => depth -= 1,
                _ => {}
            }
            i += 1;
            if depth == 0 {
                break;
            }
        }
        let next = all[i..]
            .iter()
            .position(|t| matches!(word(t), ";" | "{" | "(" | "="))
            .map(|n| n + i);
        match next {
            Some(next) => end = next,
            None => return end,
        }
    }
    end
}

fn is_attribute(word: &str) -> bool {
    matches!(word, "__align__" | "alignas" | "__attribute__")
}

/// The declaration that replaces the tokens after `extern`; none when they are no array of unknown length.
fn dynamic_array(text: &str, declaration: &[Token], in_function: bool) -> Option<String> {
    let word = |t: &Token| &text[t.start..t.end];
    let bracket = declaration.iter().position(|t| word(t) == "[")?;
    if word(declaration.get(bracket + 1)?) != "]" {
        return None;
    }
    let name = word(declaration.get(bracket.checked_sub(1)?)?);
    let mut element = String::new();
    let mut skip_group = 0;
    let mut after_attribute = false;
    for token in &declaration[..bracket - 1] {
        let w = word(token);
        if skip_group > 0 || (after_attribute && w == "(") {
            skip_group += i32::from(w == "(") - i32::from(w == ")");
            after_attribute = false;
            continue;
        }
        after_attribute = is_attribute(w);
        if !(after_attribute || w == "__shared__") {
            element.push_str(w);
            element.push(' ');
        }
    }
    let suffix: String = declaration[bracket..].iter().map(word).collect();
    let element = element.trim_end();
    Some(if in_function {
        format!("{element} (&{name}){suffix} = *reinterpret_cast<{element} (*){suffix}>(gpuvm_sim::dynamic_shared())")
    } else {
        let inner = &suffix[2..];
        format!("static const gpuvm_sim::dynamic_array<{element}{inner}> {name}")
    })
}

/// Whether the current place is inside a function, told by the braces around it.
#[derive(Default)]
struct Scopes {
    /// One entry a brace: whether it is a namespace's.
    open: Vec<bool>,
    /// Whether the words since the last `;`, `{` or `}` begin a namespace or an extern "C" block.
    namespace: bool,
    first: bool,
    started: bool,
}

impl Scopes {
    fn see(&mut self, word: &str) {
        if !self.started {
            (self.started, self.first) = (true, true);
        }
        match word {
            "{" => {
                self.open.push(self.namespace);
                (self.namespace, self.first) = (false, true);
            }
            "}" => {
                self.open.pop();
                (self.namespace, self.first) = (false, true);
            }
            ";" => (self.namespace, self.first) = (false, true),
            _ => {
                if self.first {
                    self.namespace = matches!(word, "namespace" | "extern" | "inline");
                    self.first = false;
                } else if matches!(word, "(" | "class" | "struct") {
                    self.namespace = false;
                }
            }
        }
    }

    fn in_function(&self) -> bool {
        self.open.contains(&false)
    }
}

/// Names of the functions that `text` declares `__global__`.
pub(crate) fn kernel_names(text: &str) -> Vec<String> {
    let all = tokens(text);
    let words: Vec<&Token> = all
        .iter()
        .filter(|t| matches!(t.kind, Kind::Word | Kind::Punctuation))
        .collect();
    let word = |t: &Token| &text[t.start..t.end];
    let mut names: Vec<String> = Vec::new();
    for (at, _) in words.iter().enumerate().filter(|(_, t)| word(t) == "__global__") {
        let mut i = at + 1;
        while i < words.len() && i < at + 32 {
            let is_call = words.get(i + 1).is_some_and(|t| word(t) == "(");
            if is_call && words[i].kind == Kind::Word {
                if !matches!(word(words[i]), "__launch_bounds__" | "__attribute__" | "__align__") {
                    let name = word(words[i]).to_owned();
                    if !names.contains(&name) {
                        names.push(name);
                    }
                    break;
                }
                while i < words.len() && word(words[i]) != ")" {
                    i += 1;
                }
            }
            i += 1;
        }
    }
    names
}
