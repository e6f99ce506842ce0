//! The reader itself: one pass over the bytes, nothing looked at twice.

use std::borrow::Cow;

use super::{JsonError, MAX_BYTES, MAX_DEPTH, Member, Node, Value, pointer_token};
use crate::names;

/// Which keys of the document are structure and which are data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keys {
    /// Field names of the OCI spec: look-alikes are refused.
    Structure,
    /// Data (annotations, sysctl …): any key, once.
    Data,
}

/// Reads a whole document.
pub(super) fn read(bytes: &[u8], keys: Keys) -> Result<Node<'_>, JsonError> {
    let fail = |rule, message: &str, offset| JsonError { rule, message: message.to_owned(), offset, at: String::new() };
    if bytes.len() > MAX_BYTES {
        return Err(fail("json-size", &format!("document is larger than {MAX_BYTES} bytes"), MAX_BYTES));
    }
    let text = std::str::from_utf8(bytes).map_err(|e| fail("json-utf8", "text is not UTF-8", e.valid_up_to()))?;
    let mut reader = Reader { text, bytes, pos: 0, path: Vec::new() };
    reader.space();
    let node = reader.value(keys)?;
    reader.space();
    if reader.pos < bytes.len() {
        return Err(reader.fail("json-trailing", "something follows the end of the document"));
    }
    Ok(node)
}

/// Up to so many members, each key is compared with all before it: structures are short, and sorting costs.
const FEW: usize = 32;

/// A step from a value to the value inside it, for the pointer of an error.
#[derive(Clone)]
enum Step<'a> {
    Key(Cow<'a, str>),
    Index(usize),
}

struct Reader<'a> {
    text: &'a str,
    bytes: &'a [u8],
    pos: usize,
    path: Vec<Step<'a>>,
}

impl<'a> Reader<'a> {
    fn fail(&self, rule: &'static str, message: &str) -> JsonError {
        let mut at = String::new();
        for step in &self.path {
            at.push('/');
            match step {
                Step::Key(key) => at.push_str(&pointer_token(key)),
                Step::Index(index) => at.push_str(&index.to_string()),
            }
        }
        JsonError { rule, message: message.to_owned(), offset: self.pos, at }
    }

    fn peek(&self) -> u8 {
        self.bytes.get(self.pos).copied().unwrap_or(0)
    }

    fn space(&mut self) {
        while matches!(self.peek(), b' ' | b'\t' | b'\n' | b'\r') {
            self.pos += 1;
        }
    }

    fn value(&mut self, keys: Keys) -> Result<Node<'a>, JsonError> {
        let start = self.pos;
        let value = match self.peek() {
            b'{' => self.object(keys)?,
            b'[' => self.array(keys)?,
            b'"' => Value::String(self.string()?),
            b'-' | b'0'..=b'9' => Value::Number(self.number()?),
            b't' => self.word("true", Value::Bool(true))?,
            b'f' => self.word("false", Value::Bool(false))?,
            b'n' => self.word("null", Value::Null)?,
            _ => return Err(self.fail("json-syntax", "expected a value")),
        };
        Ok(Node { span: start..self.pos, value })
    }

    fn word(&mut self, word: &str, value: Value<'a>) -> Result<Value<'a>, JsonError> {
        if self.bytes.get(self.pos..self.pos + word.len()) != Some(word.as_bytes()) {
            return Err(self.fail("json-syntax", "expected a value"));
        }
        self.pos += word.len();
        Ok(value)
    }

    fn deeper(&mut self) -> Result<(), JsonError> {
        if self.path.len() >= MAX_DEPTH {
            return Err(self.fail("json-depth", "nested too deeply"));
        }
        self.pos += 1;
        self.space();
        Ok(())
    }

    fn array(&mut self, keys: Keys) -> Result<Value<'a>, JsonError> {
        self.deeper()?;
        let mut items = Vec::new();
        if self.peek() == b']' {
            self.pos += 1;
            return Ok(Value::Array(items));
        }
        loop {
            self.path.push(Step::Index(items.len()));
            items.push(self.value(keys)?);
            self.path.pop();
            self.space();
            match self.peek() {
                b',' => self.pos += 1,
                b']' => break self.pos += 1,
                _ => return Err(self.fail("json-syntax", "expected ',' or ']'")),
            }
            self.space();
        }
        Ok(Value::Array(items))
    }

    fn object(&mut self, keys: Keys) -> Result<Value<'a>, JsonError> {
        self.deeper()?;
        let mut members: Vec<Member<'a>> = Vec::new();
        if self.peek() == b'}' {
            self.pos += 1;
            return Ok(Value::Object(members));
        }
        loop {
            if self.peek() != b'"' {
                return Err(self.fail("json-syntax", "expected a key"));
            }
            let start = self.pos;
            let key = self.string()?;
            self.check_key(keys, &key, &members)?;
            self.space();
            if self.peek() != b':' {
                return Err(self.fail("json-syntax", "expected ':'"));
            }
            self.pos += 1;
            self.space();
            let inner = if keys == Keys::Data || names::is_data_map(&key) { Keys::Data } else { Keys::Structure };
            self.path.push(Step::Key(key.clone()));
            let value = self.value(inner)?;
            self.path.pop();
            members.push(Member { key, start, value });
            self.space();
            match self.peek() {
                b',' => self.pos += 1,
                b'}' => break self.pos += 1,
                _ => return Err(self.fail("json-syntax", "expected ',' or '}'")),
            }
            self.space();
        }
        self.check_many(&members)?;
        Ok(Value::Object(members))
    }

    fn twice(&self, key: &str) -> JsonError {
        self.fail("json-duplicate-key", &format!("key {key:?} appears twice"))
    }

    /// Long maps are looked through once, sorted.
    fn check_many(&self, members: &[Member<'_>]) -> Result<(), JsonError> {
        if members.len() <= FEW {
            return Ok(());
        }
        let mut keys: Vec<&str> = members.iter().map(|m| m.key.as_ref()).collect();
        crate::order::sort(&mut keys);
        match keys.windows(2).find(|pair| pair.first() == pair.last()) {
            Some(pair) => Err(self.twice(pair.first().copied().unwrap_or_default())),
            None => Ok(()),
        }
    }

    fn check_key(&self, keys: Keys, key: &str, before: &[Member<'_>]) -> Result<(), JsonError> {
        if before.len() < FEW && before.iter().any(|m| m.key == key) {
            return Err(self.twice(key));
        }
        if keys == Keys::Structure
            && let Some(real) = names::look_alike(key)
        {
            return Err(self.fail(
                "json-look-alike-key",
                &format!("key {key:?} looks like {real:?} and some runtimes read it so"),
            ));
        }
        Ok(())
    }

    fn number(&mut self) -> Result<&'a str, JsonError> {
        let start = self.pos;
        let digits = |r: &mut Self| {
            let from = r.pos;
            while r.peek().is_ascii_digit() {
                r.pos += 1;
            }
            r.pos > from
        };
        if self.peek() == b'-' {
            self.pos += 1;
        }
        let zero = self.peek() == b'0';
        let first = self.pos;
        let mut good = digits(self) && !(zero && self.pos - first > 1);
        if good && self.peek() == b'.' {
            self.pos += 1;
            good = digits(self);
        }
        if good && matches!(self.peek(), b'e' | b'E') {
            self.pos += 1;
            if matches!(self.peek(), b'+' | b'-') {
                self.pos += 1;
            }
            good = digits(self);
        }
        if good { Ok(&self.text[start..self.pos]) } else { Err(self.fail("json-syntax", "malformed number")) }
    }

    fn string(&mut self) -> Result<Cow<'a, str>, JsonError> {
        self.pos += 1;
        let start = self.pos;
        let rest = self.bytes.get(start..).unwrap_or_default();
        // Most bytes of a document stand in strings, and most of those mean themselves.
        let plain = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f)).unwrap_or(rest.len());
        self.pos += plain;
        match rest.get(plain) {
            None => Err(self.fail("json-syntax", "string is not closed")),
            Some(b'"') => {
                let text = &self.text[start..self.pos];
                self.pos += 1;
                Ok(Cow::Borrowed(text))
            }
            Some(b'\\') => self.escaped(start),
            Some(_) => Err(self.fail("json-syntax", "control character in a string")),
        }
    }

    /// The rest of a string in which an escape was met.
    fn escaped(&mut self, start: usize) -> Result<Cow<'a, str>, JsonError> {
        let mut out = String::from(&self.text[start..self.pos]);
        let mut plain = self.pos;
        loop {
            match self.bytes.get(self.pos) {
                None => return Err(self.fail("json-syntax", "string is not closed")),
                Some(b'"') => {
                    out.push_str(&self.text[plain..self.pos]);
                    self.pos += 1;
                    return Ok(Cow::Owned(out));
                }
                Some(b'\\') => {
                    out.push_str(&self.text[plain..self.pos]);
                    out.push(self.escape()?);
                    plain = self.pos;
                }
                Some(0..=0x1f) => return Err(self.fail("json-syntax", "control character in a string")),
                Some(_) => self.pos += 1,
            }
        }
    }

    fn escape(&mut self) -> Result<char, JsonError> {
        self.pos += 1;
        let simple = match self.peek() {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => return self.unicode(),
            _ => return Err(self.fail("json-syntax", "unknown escape")),
        };
        self.pos += 1;
        Ok(simple)
    }

    fn unicode(&mut self) -> Result<char, JsonError> {
        let high = self.hex4()?;
        let code = if (0xd800..0xdc00).contains(&high) {
            if self.peek() != b'\\' || self.bytes.get(self.pos + 1) != Some(&b'u') {
                return Err(self.fail("json-surrogate", "half of a surrogate pair"));
            }
            self.pos += 1;
            let low = self.hex4()?;
            if !(0xdc00..0xe000).contains(&low) {
                return Err(self.fail("json-surrogate", "half of a surrogate pair"));
            }
            0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00)
        } else {
            high
        };
        match char::from_u32(code) {
            Some('\0') => Err(self.fail("json-nul", "NUL in a string")),
            Some(c) => Ok(c),
            None => Err(self.fail("json-surrogate", "half of a surrogate pair")),
        }
    }

    /// Four hexadecimal digits after the `u` that `pos` stands on.
    fn hex4(&mut self) -> Result<u32, JsonError> {
        self.pos += 1;
        let digits = self.bytes.get(self.pos..self.pos + 4).unwrap_or_default();
        if digits.len() < 4 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(self.fail("json-syntax", "\\u needs four hexadecimal digits"));
        }
        self.pos += 4;
        Ok(digits.iter().fold(0, |code, d| code << 4 | char::from(*d).to_digit(16).unwrap_or(0)))
    }
}
