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
    let directives = directives(&all, text);
    let mut out = String::with_capacity(text.len() + 256);
    let mut copied = 0;
    let mut scopes = Scopes::default();
    let mut at = 0;
    while at < meaningful.len() {
        let token = meaningful[at];
        // A declaration in a macro ends with the macro.
        let line_end = directives
            .iter()
            .find(|(from, to)| (*from..*to).contains(&token.start))
            .map(|(_, to)| *to);
        let reach = line_end.map_or(meaningful.len(), |to| meaningful.partition_point(|t| t.start < to));
        let scope = &meaningful[..reach];
        if line_end.is_none() {
            scopes.see(word(&token));
        }
        if matches!(word(&token), "extern" | "static") && token.kind == Kind::Word {
            let end = scope[at..]
                .iter()
                .position(|t| matches!(word(t), ";" | "{" | "(" | "="))
                .map(|n| n + at);
            let end = end.or(line_end.map(|_| reach));
            let end = end.map(|e| past_attributes(scope, &word, at, e));
            let is_shared = end.is_some_and(|end| scope[at..end].iter().any(|t| word(t) == "__shared__"));
            if let (true, Some(end)) = (is_shared, end) {
                let replacement = if word(&token) == "static" {
                    Some((token.end, String::new()))
                } else {
                    dynamic_array(text, &scope[at + 1..end], scopes.in_function()).map(|new| (scope[end - 1].end, new))
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

/// Where preprocessor lines lie, continued ones whole.
fn directives(all: &[Token], text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut begin = None;
    let mut at_line_start = true;
    for token in all {
        match token.kind {
            Kind::Newline => {
                if let Some(begin) = begin.take() {
                    found.push((begin, token.start));
                }
                at_line_start = true;
            }
            Kind::Blank => {}
            _ => {
                if at_line_start && &text[token.start..token.end] == "#" {
                    begin = Some(token.start);
                }
                at_line_start = false;
            }
        }
    }
    found.extend(begin.map(|begin| (begin, text.len())));
    found
}

/// The end of a declaration that starts at `at`, when its first bracket at `end` only belongs to an attribute.
fn past_attributes<'a>(all: &[Token], word: &impl Fn(&Token) -> &'a str, at: usize, end: usize) -> usize {
    let mut end = end;
    while end > at && end < all.len() && word(&all[end]) == "(" && is_attribute(word(&all[end - 1])) {
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

#[cfg(test)]
mod tests {
    use super::{kernel_names, shared_arrays};

    #[test]
    fn only_declarations_of_dynamic_arrays_change() {
        for same in [
            "extern int a[];\nextern \"C\" int f(int);\n",
            "const char* s = \"extern __shared__ int a[];\"; // extern __shared__ int b[];\n/* extern __shared__ int c[]; */",
            "auto r = R\"x(extern __shared__ int a[];)x\"; char c = '\"'; int n = 1'000;",
            "__global__ void k() { __shared__ float a[4]; }",
            "#define S extern __shared__\nS int a[];",
            "extern __shared__ int a[4];",
        ] {
            assert_eq!(shared_arrays(same), same);
        }
        assert_eq!(shared_arrays("static __shared__ int a;"), " __shared__ int a;");
    }

    #[test]
    fn lines_stay_where_they_are() {
        let text = "namespace n {\nvoid k()\n{\n  extern\n  __shared__ __align__(8)\n  unsigned long s[]; s[0] = 1;\n}\n}\nint last;";
        let out = shared_arrays(text);
        assert_eq!(out.lines().count(), text.lines().count());
        assert_eq!(out.lines().last(), Some("int last;"));
        let wanted = "unsigned long (&s)[] = *reinterpret_cast<unsigned long (*)[]>(gpuvm_sim::dynamic_shared())";
        assert!(out.contains(wanted), "{out}");
    }

    #[test]
    fn scope_decides_the_form() {
        let in_macro = shared_arrays("#define D(T) extern __shared__ T s[]\nvoid f() { D(int); }");
        assert_eq!(
            in_macro,
            "#define D(T) static const gpuvm_sim::dynamic_array<T> s\nvoid f() { D(int); }"
        );
        let proxy = "static const gpuvm_sim::dynamic_array<float> s";
        assert!(shared_arrays("extern __shared__ float s[];").contains(proxy));
        assert!(shared_arrays("namespace a { namespace { extern __shared__ float s[]; } }").contains(proxy));
        assert!(shared_arrays("namespace a { void f() {} extern __shared__ float s[]; }").contains(proxy));
        assert!(
            shared_arrays("struct S {}; void f() { if (1) { extern __shared__ float s[][2]; } }").contains("(&s)[][2]")
        );
    }

    #[test]
    fn unfinished_text_is_left_to_the_compiler() {
        for text in [
            "extern __shared__ int a[",
            "extern __shared__",
            "\"",
            "/*",
            "R\"",
            "'",
            "extern __shared__ [];",
            "}}}}{",
        ] {
            let _ = (shared_arrays(text), kernel_names(text));
        }
    }

    #[test]
    fn kernels_are_found_by_name() {
        let text = "template <class T>\n__global__ void __launch_bounds__(128) a(T*);\n__global__ static void b();\n// __global__ void c();\n\
                    __global__ void b() {}";
        assert_eq!(kernel_names(text), ["a", "b"]);
    }
}
