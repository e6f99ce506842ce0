//! YAML written as JSON, with the line that each part came from. What two readers of YAML take for different things is
//! refused: words and numbers that only some of them know, keys that are no texts, several documents, tags, merge keys.
//!
//! Aliases are written out, within a bound. Whether a key repeats is left to the reader of the JSON.

use std::collections::BTreeMap;
use std::ops::Range;

use contract::json;
use saphyr_parser::{Event, Parser, ScalarStyle, Tag};

use super::problem::Problem;

/// The most bytes of JSON that a file may become: aliases make much of little.
const MAX_WRITTEN: usize = 4 << 20;

/// The document as JSON, and by rising position in it the lines of the file.
type Written = (Vec<u8>, Vec<(usize, usize)>);

/// Writes YAML as JSON.
pub(crate) fn to_json(bytes: &[u8]) -> Result<Written, Problem> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let line = 1 + bytes.iter().take(error.valid_up_to()).filter(|byte| **byte == b'\n').count();
        Problem { line: Some(line), ..Problem::whole("the file is not UTF-8") }
    })?;
    let mut writer = Writer::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| Problem {
            line: Some(error.marker().line()),
            ..Problem::whole(format!("the file is not YAML: {}", error.info()))
        })?;
        writer.line = span.start.line();
        writer.take(event).map_err(|message| Problem { line: Some(writer.line), ..Problem::whole(message) })?;
    }
    Ok((writer.out, writer.lines))
}

#[derive(Default)]
struct Writer {
    out: Vec<u8>,
    lines: Vec<(usize, usize)>,
    /// The line of the file that is being read.
    line: usize,
    open: Vec<Open>,
    /// By its number, what stands behind an anchor; nothing while it is not all there.
    anchors: BTreeMap<usize, Range<usize>>,
    documents: usize,
}

/// A list or table that is not at its end.
struct Open {
    is_table: bool,
    /// How many keys, values and items it has so far.
    parts: usize,
    anchor: usize,
    start: usize,
}

impl Writer {
    fn take(&mut self, event: Event<'_>) -> Result<(), String> {
        match event {
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err("a second document begins here, and engines read the first alone".to_owned());
                }
            }
            Event::Scalar(text, style, anchor, tag) => {
                let start = self.value(&tag)?;
                self.scalar(&text, style)?;
                self.end_of_value(anchor, start)?;
            }
            Event::Alias(anchor) => self.alias(anchor)?,
            Event::SequenceStart(anchor, tag) => self.begin(false, anchor, &tag)?,
            Event::MappingStart(anchor, tag) => self.begin(true, anchor, &tag)?,
            Event::SequenceEnd | Event::MappingEnd => self.end()?,
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
        Ok(())
    }

    /// What stands between this value and the one before, and where the value starts.
    fn value<T: std::borrow::Borrow<Tag>>(&mut self, tag: &Option<T>) -> Result<usize, String> {
        if let Some(tag) = tag.as_ref().map(std::borrow::Borrow::borrow) {
            return Err(format!("the tag {}{} is not read here: leave it out", tag.handle, tag.suffix));
        }
        if let Some(open) = self.open.last_mut() {
            let is_value = open.is_table && open.parts % 2 == 1;
            if is_value {
                self.out.push(b':');
            } else if open.parts > 0 {
                self.out.push(b',');
            }
            open.parts += 1;
        }
        self.lines.push((self.out.len(), self.line));
        Ok(self.out.len())
    }

    /// Whether what is written now is a key: its place was counted already.
    fn is_key(&self) -> bool {
        self.open.last().is_some_and(|open| open.is_table && open.parts % 2 == 1)
    }

    fn scalar(&mut self, text: &str, style: ScalarStyle) -> Result<(), String> {
        let meant = if style == ScalarStyle::Plain { plain(text)? } else { Meant::Text };
        match meant {
            Meant::Text if text == "<<" && style == ScalarStyle::Plain && self.is_key() => {
                return Err("the merge key << is not read here: write out what it merges".to_owned());
            }
            Meant::Text => self.out.extend_from_slice(json::quote(text).as_bytes()),
            _ if self.is_key() => return Err(format!("the key {text:?} must be a text: put it in quotes")),
            Meant::Json(json) => self.out.extend_from_slice(json.as_bytes()),
        }
        Ok(())
    }

    fn end_of_value(&mut self, anchor: usize, start: usize) -> Result<(), String> {
        if anchor != 0 {
            self.anchors.insert(anchor, start..self.out.len());
        }
        if self.out.len() > MAX_WRITTEN {
            return Err(format!("written out, the file has more than {MAX_WRITTEN} bytes"));
        }
        Ok(())
    }

    fn alias(&mut self, anchor: usize) -> Result<(), String> {
        let copy = self.anchors.get(&anchor).and_then(|range| self.out.get(range.clone())).map(<[u8]>::to_vec);
        let copy = copy.ok_or("an alias stands inside of what it names")?;
        let start = self.value(&None::<Tag>)?;
        if self.is_key() && copy.first() != Some(&b'"') {
            return Err("the key that an alias stands for must be a text".to_owned());
        }
        self.out.extend_from_slice(&copy);
        self.end_of_value(0, start)
    }

    fn begin<T: std::borrow::Borrow<Tag>>(
        &mut self,
        is_table: bool,
        anchor: usize,
        tag: &Option<T>,
    ) -> Result<(), String> {
        let start = self.value(tag)?;
        if self.is_key() {
            return Err("a key must be a text, and this one is a list or a table".to_owned());
        }
        if self.open.len() >= json::MAX_DEPTH {
            return Err(format!("lists and tables are more than {} deep", json::MAX_DEPTH));
        }
        self.out.push(if is_table { b'{' } else { b'[' });
        self.open.push(Open { is_table, parts: 0, anchor, start });
        Ok(())
    }

    fn end(&mut self) -> Result<(), String> {
        let Some(Open { is_table, anchor, start, .. }) = self.open.pop() else { return Ok(()) };
        self.out.push(if is_table { b'}' } else { b']' });
        self.end_of_value(anchor, start)
    }
}

/// What a word without quotes means.
enum Meant<'t> {
    Text,
    Json(&'t str),
}

/// YAML 1.1, which engines read, and 1.2 know different words and numbers.
fn plain(text: &str) -> Result<Meant<'_>, String> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Ok(Meant::Json("null")),
        "true" | "True" | "TRUE" => return Ok(Meant::Json("true")),
        "false" | "False" | "FALSE" => return Ok(Meant::Json("false")),
        _ => {}
    }
    let same_case = |word: &str| {
        let rest = word.get(1..).unwrap_or_default();
        word.to_ascii_uppercase() == word || rest.to_ascii_lowercase() == rest
    };
    if ["y", "yes", "on", "n", "no", "off"].contains(&text.to_ascii_lowercase().as_str()) && same_case(text) {
        return Err(format!(
            "{text} is true or false to some readers of YAML: put it in quotes, or write true or false"
        ));
    }
    if is_decimal(text) {
        return Ok(Meant::Json(text));
    }
    if is_other_number(text) {
        return Err(format!(
            "{text} is a number to some readers of YAML: put it in quotes, or write a whole number in decimal"
        ));
    }
    Ok(Meant::Text)
}

fn is_decimal(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    digits.bytes().all(|byte| byte.is_ascii_digit())
        && !digits.is_empty()
        && (digits == "0" || !digits.starts_with('0'))
}

fn is_other_number(text: &str) -> bool {
    let text = text.replace('_', "").to_ascii_lowercase();
    let digits = text.strip_prefix(['-', '+']).unwrap_or(&text);
    let based = ["0x", "0o", "0b"].iter().find_map(|prefix| digits.strip_prefix(prefix));
    let in_base = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let begins = digits.strip_prefix('.').unwrap_or(digits).starts_with(|c: char| c.is_ascii_digit());
    matches!(digits, ".inf" | ".nan") || based.is_some_and(in_base) || begins && digits.parse::<f64>().is_ok()
}
