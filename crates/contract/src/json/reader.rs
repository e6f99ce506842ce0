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

/// A list at the top of a document whose items are taken as they come, and are not in what is read.
pub(super) struct Taken<'t, 'a> {
    /// Its key.
    pub(super) key: &'t str,
    /// Who takes them.
    pub(super) take: &'t mut dyn FnMut(Node<'a>),
}

/// Reads a whole document.
pub(super) fn read<'a>(bytes: &'a [u8], keys: Keys, taken: Option<Taken<'_, 'a>>) -> Result<Node<'a>, JsonError> {
    let fail = |rule, message: &str, offset| JsonError { rule, message: message.to_owned(), offset, at: String::new() };
    if bytes.len() > MAX_BYTES {
        return Err(fail("json-size", &format!("document is larger than {MAX_BYTES} bytes"), MAX_BYTES));
    }
    let text = std::str::from_utf8(bytes).map_err(|e| fail("json-utf8", "text is not UTF-8", e.valid_up_to()))?;
    let mut reader = Reader { text, bytes, pos: 0, path: Vec::new(), taken };
    reader.document(keys).map_err(|error| *error)
}

/// Up to so many members, each key is compared with all before it: structures are short, and sorting costs.
const FEW: usize = 32;

/// Room for the members of most objects and lists: few have more.
const USUAL: usize = 10;

/// A step from a value to the value inside it, for the pointer of an error.
#[derive(Clone)]
enum Step<'a> {
    Key(Cow<'a, str>),
    Index(usize),
}

/// How many bytes of a string mean themselves: most bytes of a document stand in strings, so they are looked at by eights.
fn plain(rest: &[u8]) -> usize {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let mut at = 0;
    while let Some(eight) = rest.get(at..).and_then(<[u8]>::first_chunk) {
        let word = u64::from_le_bytes(*eight);
        // The highest bit of each byte that is below; of those after the first such a byte it may be wrong.
        let below = |word: u64, least: u64| word.wrapping_sub(EACH * least) & !word & (EACH << 7);
        let is = |byte: u8| below(word ^ (EACH * u64::from(byte)), 1);
        let special = is(b'"') | is(b'\\') | below(word, 0x20);
        if special != 0 {
            return at + special.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let last = rest.get(at..).unwrap_or_default();
    at + last.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f)).unwrap_or(last.len())
}

struct Reader<'t, 'a> {
    text: &'a str,
    bytes: &'a [u8],
    pos: usize,
    path: Vec<Step<'a>>,
    taken: Option<Taken<'t, 'a>>,
}

/// A box, since every value that is read could be one.
type Wrong = Box<JsonError>;

impl<'a> Reader<'_, 'a> {
    fn document(&mut self, keys: Keys) -> Result<Node<'a>, Wrong> {
        self.space();
        let node = self.value(keys)?;
        self.space();
        if self.pos < self.bytes.len() {
            return Err(self.fail("json-trailing", "something follows the end of the document"));
        }
        Ok(node)
    }

    #[cold]
    #[inline(never)]
    fn fail(&self, rule: &'static str, message: &str) -> Wrong {
        let mut at = String::new();
        for step in &self.path {
            at.push('/');
            match step {
                Step::Key(key) => at.push_str(&pointer_token(key)),
                Step::Index(index) => at.push_str(&index.to_string()),
            }
        }
        Box::new(JsonError { rule, message: message.to_owned(), offset: self.pos, at })
    }

    fn peek(&self) -> u8 {
        self.bytes.get(self.pos).copied().unwrap_or(0)
    }

    fn space(&mut self) {
        while matches!(self.peek(), b' ' | b'\t' | b'\n' | b'\r') {
            self.pos += 1;
        }
    }

    fn value(&mut self, keys: Keys) -> Result<Node<'a>, Wrong> {
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

    fn word(&mut self, word: &str, value: Value<'a>) -> Result<Value<'a>, Wrong> {
        if self.bytes.get(self.pos..self.pos + word.len()) != Some(word.as_bytes()) {
            return Err(self.fail("json-syntax", "expected a value"));
        }
        self.pos += word.len();
        Ok(value)
    }

    fn deeper(&mut self) -> Result<(), Wrong> {
        if self.path.len() >= MAX_DEPTH {
            return Err(self.fail("json-depth", "nested too deeply"));
        }
        self.pos += 1;
        self.space();
        Ok(())
    }

    fn array(&mut self, keys: Keys) -> Result<Value<'a>, Wrong> {
        self.deeper()?;
        if self.peek() == b']' {
            self.pos += 1;
            return Ok(Value::Array(Vec::new()));
        }
        let mut items = Vec::with_capacity(USUAL);
        let is = |taken: &Taken<'_, '_>| matches!(self.path.as_slice(), [Step::Key(key)] if *key == taken.key);
        let mut taken = self.taken.take_if(|taken| is(taken));
        let mut index = 0;
        loop {
            self.path.push(Step::Index(index));
            let item = self.value(keys)?;
            match &mut taken {
                Some(taken) => (taken.take)(item),
                None => items.push(item),
            }
            self.path.pop();
            index += 1;
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

    fn object(&mut self, keys: Keys) -> Result<Value<'a>, Wrong> {
        self.deeper()?;
        if self.peek() == b'}' {
            self.pos += 1;
            return Ok(Value::Object(Vec::new()));
        }
        let mut members: Vec<Member<'a>> = Vec::with_capacity(USUAL);
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

    fn twice(&self, key: &str) -> Wrong {
        self.fail("json-duplicate-key", &format!("key {key:?} appears twice"))
    }

    /// Long maps are looked through once, sorted.
    fn check_many(&self, members: &[Member<'_>]) -> Result<(), Wrong> {
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

    fn check_key(&self, keys: Keys, key: &str, before: &[Member<'_>]) -> Result<(), Wrong> {
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

    fn number(&mut self) -> Result<&'a str, Wrong> {
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

    fn string(&mut self) -> Result<Cow<'a, str>, Wrong> {
        self.pos += 1;
        let start = self.pos;
        let rest = self.bytes.get(start..).unwrap_or_default();
        let plain = plain(rest);
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
    fn escaped(&mut self, start: usize) -> Result<Cow<'a, str>, Wrong> {
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

    fn escape(&mut self) -> Result<char, Wrong> {
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

    fn unicode(&mut self) -> Result<char, Wrong> {
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
    fn hex4(&mut self) -> Result<u32, Wrong> {
        self.pos += 1;
        let digits = self.bytes.get(self.pos..self.pos + 4).unwrap_or_default();
        if digits.len() < 4 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(self.fail("json-syntax", "\\u needs four hexadecimal digits"));
        }
        self.pos += 4;
        Ok(digits.iter().fold(0, |code, d| code << 4 | char::from(*d).to_digit(16).unwrap_or(0)))
    }
}
