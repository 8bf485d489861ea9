//! From tokens to the model. Every loop passes a token, and nesting is bounded.

use std::ops::Range;

use crate::error::PtxError;
use crate::model::{
    Address, Declaration, Declared, Function, Guard, Instruction, Item, Module, Offset, Operand, Space, Statement,
    StatementKind,
};
use crate::tokens::{Lines, Token, TokenKind, tokens};

/// Blocks in blocks.
pub(crate) const BLOCKS_MAX: usize = 64;
/// Brackets in an operand.
const BRACKETS_MAX: usize = 16;
/// The oldest PTX that is read.
const VERSION_MIN: (u32, u32) = (6, 0);
/// Behind the newest one.
const VERSION_END: (u32, u32) = (10, 0);

impl<'a> Module<'a> {
    /// Reads a module.
    ///
    /// # Errors
    ///
    /// What is wrong with the text, and where.
    pub fn parse(text: &'a str) -> Result<Self, PtxError> {
        let (tokens, lines) = tokens(text)?;
        let mut parser = Parser {
            text,
            tokens,
            lines,
            at: 0,
        };
        parser.module()
    }
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Token>,
    lines: Lines,
    at: usize,
}

/// The directives before the first function.
#[derive(Default)]
struct Header {
    version: Option<(u32, u32)>,
    end: Option<usize>,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Token {
        // The last token is the end, and nothing passes it.
        self.tokens[self.at.min(self.tokens.len() - 1)]
    }

    fn second(&self) -> TokenKind {
        self.tokens[(self.at + 1).min(self.tokens.len() - 1)].kind
    }

    fn pass(&mut self) -> Token {
        let token = self.peek();
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        token
    }

    fn word(&self, token: Token) -> &'a str {
        &self.text[token.range()]
    }

    fn is(&self, mark: u8) -> bool {
        self.peek().kind == TokenKind::Mark(mark)
    }

    fn pass_if(&mut self, mark: u8) -> bool {
        let found = self.is(mark);
        if found {
            self.pass();
        }
        found
    }

    fn unexpected(&self, expected: &'static str) -> PtxError {
        let token = self.peek();
        let found = match token.kind {
            TokenKind::End => "the end of the text".to_owned(),
            _ => format!("`{}`", self.word(token).chars().take(40).collect::<String>()),
        };
        PtxError::Unexpected {
            at: self.lines.position(token.start as usize),
            found,
            expected,
        }
    }

    fn expect(&mut self, kind: TokenKind, expected: &'static str) -> Result<Token, PtxError> {
        if self.peek().kind == kind {
            return Ok(self.pass());
        }
        Err(self.unexpected(expected))
    }

    fn end_of_last(&self) -> usize {
        self.tokens[self.at.saturating_sub(1)].end as usize
    }

    fn span_from(&self, start: Token) -> Range<usize> {
        start.start as usize..self.end_of_last()
    }

    /// Passes tokens until `stop` says so outside of brackets, which are counted and not told apart.
    fn skip_until(&mut self, stop: impl Fn(u8) -> bool) -> Result<(), PtxError> {
        let start = self.peek();
        let mut depth = 0_usize;
        loop {
            match self.peek().kind {
                TokenKind::End => {
                    let at = self.lines.position(start.start as usize);
                    let what = "a statement";
                    return Err(PtxError::Unclosed { at, what });
                }
                TokenKind::Mark(mark) if depth == 0 && stop(mark) => return Ok(()),
                TokenKind::Mark(b'{' | b'(' | b'[') => depth += 1,
                TokenKind::Mark(b'}' | b')' | b']') => {
                    let less = depth.checked_sub(1);
                    depth = less.ok_or_else(|| self.unexpected("`;`"))?;
                }
                _ => {}
            }
            self.pass();
        }
    }

    fn skip_statement(&mut self) -> Result<(), PtxError> {
        self.skip_until(|mark| mark == b';')?;
        self.pass();
        Ok(())
    }

    fn module(&mut self) -> Result<Module<'a>, PtxError> {
        let mut header = Header::default();
        let mut items = Vec::new();
        while self.peek().kind != TokenKind::End {
            items.push(self.item(&mut header)?);
        }
        self.check(&header)?;
        Ok(Module {
            text: self.text,
            lines: self.lines.clone(),
            items,
            version: header.version.unwrap_or_default(),
            header_end: header.end.unwrap_or_default(),
        })
    }

    fn check(&self, header: &Header) -> Result<(), PtxError> {
        let directive = match header {
            Header { version: None, .. } => ".version",
            Header { end: None, .. } => ".address_size",
            _ => return Ok(()),
        };
        let at = self.lines.position(self.peek().start as usize);
        Err(PtxError::MissingDirective { at, directive })
    }

    fn item(&mut self, header: &mut Header) -> Result<Item<'a>, PtxError> {
        let start = self.peek();
        if self.pass_if(b';') {
            return Ok(Item::Directive(self.span_from(start)));
        }
        if start.kind != TokenKind::Dotted {
            return Err(self.unexpected("a directive"));
        }
        match self.word(start) {
            ".version" => header.version = Some(self.version()?),
            ".address_size" => {
                self.address_size()?;
                header.end = Some(self.end_of_last());
            }
            ".target" => {
                self.pass();
                self.expect(TokenKind::Name, "a target")?;
                while self.pass_if(b',') {
                    self.expect(TokenKind::Name, "a target's option")?;
                }
            }
            ".file" | ".loc" => self.line_directive()?,
            ".section" => self.section()?,
            ".pragma" | ".alias" => self.skip_statement()?,
            _ => return self.declared_item(header, start),
        }
        Ok(Item::Directive(self.span_from(start)))
    }

    fn version(&mut self) -> Result<(u32, u32), PtxError> {
        self.pass();
        let token = self.expect(TokenKind::Number, "a version")?;
        let parts = self.word(token).split_once('.');
        let version = parts.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        match version {
            Some(version) if (VERSION_MIN..VERSION_END).contains(&version) => Ok(version),
            _ => Err(PtxError::Version {
                at: self.lines.position(token.start as usize),
                found: self.word(token).to_owned(),
            }),
        }
    }

    fn address_size(&mut self) -> Result<(), PtxError> {
        self.pass();
        let token = self.expect(TokenKind::Number, "an address size")?;
        if self.word(token) == "64" {
            return Ok(());
        }
        Err(PtxError::AddressSize {
            at: self.lines.position(token.start as usize),
            bits: self.word(token).to_owned(),
        })
    }

    /// `.file 1 "a.cu", 2, 3` and `.loc 1 2 3, function_name $L__info_string0, inlined_at 1 2 3`: they end where no token of theirs
    /// follows.
    fn line_directive(&mut self) -> Result<(), PtxError> {
        self.pass();
        self.expect(TokenKind::Number, "a file's number")?;
        loop {
            match self.peek().kind {
                TokenKind::Number | TokenKind::Text => {
                    self.pass();
                }
                TokenKind::Mark(b',') => {
                    self.pass();
                    if self.peek().kind == TokenKind::Name {
                        let key = self.pass();
                        if self.word(key) == "function_name" {
                            self.expect(TokenKind::Name, "a label")?;
                        }
                    }
                }
                // `function_name label + 4`
                TokenKind::Mark(b'+' | b'-') => {
                    self.pass();
                }
                _ => return Ok(()),
            }
        }
    }

    fn section(&mut self) -> Result<(), PtxError> {
        self.pass();
        if !matches!(self.pass().kind, TokenKind::Dotted | TokenKind::Name) {
            return Err(self.unexpected("a section's name"));
        }
        if !self.is(b'{') {
            return Err(self.unexpected("`{`"));
        }
        self.pass();
        self.skip_until(|mark| mark == b'}')?;
        self.pass();
        Ok(())
    }

    /// A variable or a function.
    fn declared_item(&mut self, header: &Header, start: Token) -> Result<Item<'a>, PtxError> {
        let first = self.at;
        while matches!(self.word(self.peek()), ".visible" | ".extern" | ".weak" | ".common") {
            self.pass();
        }
        let is_entry = match self.word(self.peek()) {
            ".entry" => true,
            ".func" => false,
            _ => {
                self.at = first;
                return Ok(Item::Variable(self.declaration()?));
            }
        };
        self.check(header)?;
        self.pass();
        Ok(Item::Function(self.function(start, is_entry)?))
    }

    fn function(&mut self, start: Token, is_entry: bool) -> Result<Function<'a>, PtxError> {
        let mut parameters = Vec::new();
        while self.peek().kind == TokenKind::Dotted {
            // `.attribute(..)`
            self.pass();
            self.skip_parentheses()?;
        }
        self.parameters(&mut parameters)?;
        let name = self.expect(TokenKind::Name, "a function's name")?;
        self.parameters(&mut parameters)?;
        loop {
            match self.peek().kind {
                TokenKind::Dotted if self.word(self.peek()) == ".pragma" => self.skip_statement()?,
                TokenKind::Mark(b'{' | b';') => break,
                TokenKind::Dotted | TokenKind::Number | TokenKind::Name | TokenKind::Mark(b',') => {
                    self.pass();
                }
                _ => return Err(self.unexpected("`{` or `;`")),
            }
        }
        let header = self.span_from(start);
        let body = match self.pass_if(b';') {
            true => None,
            false => Some(self.body()?),
        };
        Ok(Function {
            name: self.word(name),
            is_entry,
            span: self.span_from(start),
            header,
            parameters,
            body,
        })
    }

    fn skip_parentheses(&mut self) -> Result<(), PtxError> {
        if self.pass_if(b'(') {
            self.skip_until(|mark| mark == b')')?;
            self.pass();
        }
        Ok(())
    }

    fn parameters(&mut self, found: &mut Vec<Declaration<'a>>) -> Result<(), PtxError> {
        if !self.pass_if(b'(') || self.pass_if(b')') {
            return Ok(());
        }
        loop {
            let start = self.peek();
            let mut declaration = self.typed(start)?;
            if let Some(name) = self.declared()? {
                declaration.names.push(name);
            }
            declaration.span = self.span_from(start);
            found.push(declaration);
            match self.peek().kind {
                TokenKind::Mark(b',') => self.pass(),
                _ => return self.expect(TokenKind::Mark(b')'), "`,` or `)`").map(drop),
            };
        }
    }

    /// A space and a type, before names.
    fn typed(&mut self, start: Token) -> Result<Declaration<'a>, PtxError> {
        let (mut space, mut bits) = (None, 0);
        while self.peek().kind == TokenKind::Dotted {
            let word = self.pass();
            let word = &self.word(word)[1..];
            // The first one counts: `.param .u64 .ptr .global .align 4 x`.
            space = space.or(Space::named(word));
            if bits == 0 {
                bits = bits_of(word);
            }
            match word {
                "align" => drop(self.expect(TokenKind::Number, "an alignment")?),
                "attribute" => self.skip_parentheses()?,
                _ => {}
            }
        }
        Ok(Declaration {
            span: self.span_from(start),
            space: space.unwrap_or(Space::Other),
            bits,
            names: Vec::new(),
        })
    }

    /// A name with its count, its bounds and its initial value.
    fn declared(&mut self) -> Result<Option<Declared<'a>>, PtxError> {
        if self.peek().kind != TokenKind::Name {
            return Ok(None);
        }
        let token = self.pass();
        let mut count = None;
        if self.pass_if(b'<') {
            let number = self.expect(TokenKind::Number, "a count")?;
            count = Some(
                self.word(number)
                    .parse()
                    .map_err(|_| self.unexpected("a count below 2^32"))?,
            );
            self.expect(TokenKind::Mark(b'>'), "`>`")?;
        }
        while self.pass_if(b'[') {
            self.skip_until(|mark| mark == b']')?;
            self.pass();
        }
        if self.pass_if(b'=') {
            self.skip_until(|mark| matches!(mark, b',' | b';'))?;
        }
        let name = self.word(token);
        Ok(Some(Declared { name, count }))
    }

    fn declaration(&mut self) -> Result<Declaration<'a>, PtxError> {
        let start = self.peek();
        let mut declaration = self.typed(start)?;
        loop {
            match self.declared()? {
                Some(name) => declaration.names.push(name),
                None => return Err(self.unexpected("a name")),
            }
            if !self.pass_if(b',') {
                break;
            }
        }
        self.expect(TokenKind::Mark(b';'), "`,` or `;`")?;
        declaration.span = self.span_from(start);
        Ok(declaration)
    }

    fn too_deep(&self, what: &'static str, max: usize) -> PtxError {
        let at = self.lines.position(self.peek().start as usize);
        PtxError::TooDeep { at, what, max }
    }

    fn body(&mut self) -> Result<Vec<Statement<'a>>, PtxError> {
        let outermost = self.peek();
        let mut found = Vec::new();
        let mut depth = 0;
        loop {
            let start = self.peek();
            let kind = match start.kind {
                TokenKind::Mark(b'{') if depth == BLOCKS_MAX => return Err(self.too_deep("blocks", BLOCKS_MAX)),
                TokenKind::Mark(b'{') => {
                    depth += 1;
                    self.pass();
                    StatementKind::Open
                }
                TokenKind::Mark(b'}') => {
                    depth -= 1;
                    self.pass();
                    StatementKind::Close
                }
                TokenKind::End => {
                    let at = self.lines.position(outermost.start as usize);
                    let what = "a function's body";
                    return Err(PtxError::Unclosed { at, what });
                }
                _ => self.statement()?,
            };
            let span = self.span_from(start);
            found.push(Statement { span, kind });
            if depth == 0 {
                return Ok(found);
            }
        }
    }

    fn statement(&mut self) -> Result<StatementKind<'a>, PtxError> {
        let token = self.peek();
        match token.kind {
            TokenKind::Mark(b';') => {
                self.pass();
                Ok(StatementKind::Directive)
            }
            TokenKind::Name if self.second() == TokenKind::Mark(b':') => {
                self.pass();
                self.pass();
                Ok(StatementKind::Label(self.word(token)))
            }
            TokenKind::Name | TokenKind::Mark(b'@') => Ok(StatementKind::Instruction(self.instruction()?)),
            TokenKind::Dotted => match self.word(token) {
                ".loc" | ".file" => {
                    self.line_directive()?;
                    Ok(StatementKind::Directive)
                }
                ".pragma" => {
                    self.skip_statement()?;
                    Ok(StatementKind::Pragma)
                }
                ".branchtargets" | ".calltargets" | ".callprototype" | ".attribute" => {
                    self.skip_statement()?;
                    Ok(StatementKind::Directive)
                }
                _ => Ok(StatementKind::Declaration(self.declaration()?)),
            },
            _ => Err(self.unexpected("a statement")),
        }
    }

    fn instruction(&mut self) -> Result<Instruction<'a>, PtxError> {
        let guard = match self.pass_if(b'@') {
            true => {
                let negated = self.pass_if(b'!');
                let token = self.expect(TokenKind::Name, "a predicate")?;
                let register = self.word(token);
                Some(Guard { register, negated })
            }
            false => None,
        };
        let first = self.expect(TokenKind::Name, "an instruction")?;
        while self.peek().kind == TokenKind::Dotted {
            self.pass();
        }
        let opcode = &self.text[self.span_from(first)];
        let mut operands = Vec::new();
        if !self.is(b';') {
            self.operands(&mut operands, 0)?;
        }
        self.expect(TokenKind::Mark(b';'), "`,` or `;`")?;
        Ok(Instruction {
            guard,
            opcode,
            operands,
        })
    }

    /// Operands with commas between them, up to what is none.
    fn operands(&mut self, found: &mut Vec<Operand<'a>>, depth: usize) -> Result<(), PtxError> {
        loop {
            found.push(self.operand(depth)?);
            if !self.pass_if(b',') {
                return Ok(());
            }
        }
    }

    fn operand(&mut self, depth: usize) -> Result<Operand<'a>, PtxError> {
        if depth == BRACKETS_MAX {
            return Err(self.too_deep("brackets", BRACKETS_MAX));
        }
        let token = self.peek();
        let operand = match token.kind {
            TokenKind::Mark(open @ (b'{' | b'(')) => {
                self.pass();
                let close = if open == b'{' { b'}' } else { b')' };
                let mut parts = Vec::new();
                if !self.is(close) {
                    self.operands(&mut parts, depth + 1)?;
                }
                self.expect(TokenKind::Mark(close), "`,` or a closing bracket")?;
                match self.peek().kind {
                    TokenKind::Mark(b',' | b';' | b'}' | b')' | b'|') => Operand::Group(parts),
                    // `(1 + 2) * 3`
                    _ => {
                        self.skip_expression()?;
                        Operand::Number(&self.text[self.span_from(token)])
                    }
                }
            }
            TokenKind::Mark(b'[') => return Ok(Operand::Address(self.address()?)),
            TokenKind::Mark(b'-' | b'+' | b'!' | b'~') => {
                self.pass();
                self.skip_expression()?;
                Operand::Number(&self.text[self.span_from(token)])
            }
            TokenKind::Number => {
                self.skip_expression()?;
                Operand::Number(&self.text[self.span_from(token)])
            }
            TokenKind::Name => {
                self.pass();
                let name = self.word(token);
                let is_element = matches!(self.peek().kind, TokenKind::Dotted | TokenKind::Mark(b'['));
                if !self.is(b'|') {
                    self.skip_expression()?;
                }
                if is_element {
                    Operand::Element(name)
                } else {
                    Operand::Name(name)
                }
            }
            _ => return Err(self.unexpected("an operand")),
        };
        if !self.is(b'|') {
            return Ok(operand);
        }
        self.pass();
        Ok(Operand::Group(vec![operand, self.operand(depth + 1)?]))
    }

    /// The rest of a constant expression, or of a name with something added.
    fn skip_expression(&mut self) -> Result<(), PtxError> {
        self.skip_until(|mark| matches!(mark, b',' | b';' | b'}' | b')' | b']' | b'|'))
    }

    fn address(&mut self) -> Result<Address<'a>, PtxError> {
        let start = self.pass();
        let base = self.peek();
        if !matches!(base.kind, TokenKind::Name | TokenKind::Number) {
            return Err(self.unexpected("a register, a variable or a number"));
        }
        self.pass();
        let sign = self.peek();
        let mut is_plain = true;
        let mut offset = None;
        if let TokenKind::Mark(sign @ (b'+' | b'-')) = sign.kind {
            self.pass();
            let first = self.peek();
            if self.is(b']') || self.is(b',') {
                return Err(self.unexpected("an offset"));
            }
            self.skip_until(|mark| matches!(mark, b']' | b','))?;
            let (text, subtracted) = (&self.text[self.span_from(first)], sign == b'-');
            offset = Some(Offset { text, subtracted });
        }
        if !self.is(b']') {
            is_plain = false;
            self.skip_until(|mark| mark == b']')?;
        }
        self.pass();
        Ok(Address {
            span: self.span_from(start),
            base: self.word(base),
            offset,
            is_plain,
        })
    }
}

/// Bits of a type's name, 0 for other words.
fn bits_of(word: &str) -> u32 {
    match word {
        "pred" => 1,
        "f16x2" | "bf16x2" => 32,
        _ => {
            let digits = word.trim_start_matches(|c: char| c.is_ascii_alphabetic());
            let kind = &word[..word.len() - digits.len()];
            match kind {
                "b" | "u" | "s" | "f" => digits.parse().unwrap_or(0),
                _ => 0,
            }
        }
    }
}
