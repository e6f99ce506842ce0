//! What `configure` would do to an engine's files, as texts before and after; and what takes it back. No files.

use serde::{Deserialize, Serialize};

use super::format::Format;
use super::text::{Trouble, Value};

/// The runtime's name in every engine.
pub(super) const NAME: &str = "quilt-gpu";

/// What an engine's files are read through: paths are the node's own, whatever folder it lies below.
pub(crate) trait Files {
    /// The text of a file; none where there is no such file.
    fn text(&self, path: &str) -> Result<Option<String>, Trouble>;
    /// The names in a folder, in order; none where there is no such folder.
    fn names(&self, folder: &str) -> Vec<String>;
    /// Whether something is there.
    fn exists(&self, path: &str) -> bool;
}

/// The file that stands in the way, and why.
pub(super) type Stop = (String, Trouble);

/// What is asked for.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    /// The runtime's program, as the engine is to call it.
    pub(super) program: String,
    /// The hook's program, where the hook is to be installed too.
    pub(super) hook: Option<String>,
    /// Whether containers that name no runtime go through ours.
    pub(super) default: bool,
    /// The engine's file, where the operator names it.
    pub(super) file: Option<String>,
}

/// One file, and where in it our part stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Draft {
    pub(super) path: String,
    pub(super) format: Format,
    /// None: there is no such file.
    pub(super) before: Option<String>,
    pub(super) after: String,
    pub(super) place: Place,
}

/// Where in a file our part stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    /// Keys of what we put in.
    pub(super) entry: Vec<String>,
    /// Keys of what names the default runtime.
    pub(super) default: Vec<String>,
}

/// Everything for one engine.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) drafts: Vec<Draft>,
    /// The command that makes the engine read its files, if it does not do so by itself.
    pub(super) restart: Option<Vec<String>>,
    /// What the operator should know.
    pub(super) notes: Vec<String>,
    /// Low-level runtimes that this engine uses, by absolute path.
    pub(super) low_level: Vec<String>,
}

impl Draft {
    /// A file of ours as a whole, or one that gets this entry and, if asked for, this default.
    pub(super) fn make(
        (path, format): (&str, Format),
        before: Option<String>,
        place: Place,
        entry: &Value,
        default: bool,
    ) -> Result<Self, Trouble> {
        let text = before.clone().unwrap_or_default();
        format.check(&text)?;
        let mut after = format.set(&text, &place.entry, entry)?;
        if default {
            after = format.set(&after, &place.default, &Value::word(NAME))?;
        }
        Ok(Self { path: path.to_owned(), format, before, after, place })
    }

    /// A file that is ours as a whole.
    pub(super) fn whole(path: &str, before: Option<String>, after: String) -> Self {
        Self { path: path.to_owned(), format: Format::Whole, before, after, place: Place::default() }
    }

    /// Whether there is anything to do.
    pub(super) fn changes(&self) -> bool {
        self.before.as_deref() != Some(&self.after)
    }
}

/// A file as we left it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Done {
    /// On the node.
    pub(super) path: String,
    pub(super) format: Format,
    /// The text without us; none: no file.
    pub(super) before: Option<String>,
    /// SHA-256 of the text that we wrote.
    pub(super) after: String,
    #[serde(flatten)]
    pub(super) place: Place,
}

/// A file without our part.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reverted {
    /// None: no file.
    pub(super) text: Option<String>,
    /// Whether the file is as it was before us, byte for byte.
    pub(super) exact: bool,
}

impl Done {
    /// Whether the file named us as default, and then names nobody.
    pub(super) fn default_goes(&self, before: Option<&str>, after: Option<&str>) -> Result<bool, Trouble> {
        let named = |text: Option<&str>| self.format.word(text.unwrap_or_default(), &self.place.default);
        Ok(named(before)?.as_deref() == Some(NAME) && named(after)?.is_none())
    }

    /// What the file would be without us, given what it is now. What others changed since then stays.
    pub(super) fn reverted(&self, now: Option<&str>) -> Result<Reverted, Trouble> {
        let Some(now) = now else { return Ok(Reverted { text: None, exact: self.before.is_none() }) };
        if contract::key::sha256(now.as_bytes()) == self.after || self.before.as_deref() == Some(now) {
            return Ok(Reverted { text: self.before.clone(), exact: true });
        }
        if self.format == Format::Whole {
            let why = "others changed this file since it was written; remove it by hand if nobody needs it";
            return Err(Trouble::Refused(why.into()));
        }
        self.format.check(now)?;
        let was = self.before.clone().unwrap_or_default();
        let mut text = self.format.unset(now, &self.place.entry)?;
        if self.format.word(&text, &self.place.default)?.as_deref() == Some(NAME) {
            let previous = self.format.verbatim(&was, &self.place.default)?;
            text = match previous.filter(|text| !text.contains(NAME)) {
                Some(previous) => self.format.set(&text, &self.place.default, &Value::Verbatim(previous))?,
                None => self.format.unset(&text, &self.place.default)?,
            };
        }
        // What held nothing but our part, and was not there, goes with it.
        for keys in [&self.place.entry, &self.place.default] {
            for depth in (1..keys.len()).rev() {
                let above = keys.get(..depth).unwrap_or_default();
                text = self.format.tidied(text, &was, above)?;
            }
        }
        let gone = self.before.is_none() && self.format.is_bare(&text);
        Ok(Reverted { text: (!gone).then_some(text), exact: false })
    }
}
