//! What the judgement collects, and the readers that check a value's shape on the way.

use std::fmt::Display;

use contract::json::{Node, Value};
use contract::{Code, Note, Refusal};

/// Most items of a list that are judged. No engine comes near.
pub(crate) const MOST_ITEMS: usize = 4096;
/// Most environment variables.
pub(crate) const MOST_VARIABLES: usize = 16384;

/// What is worth noting about one place: rule and message. Or why it is refused, without saying yet where.
pub(crate) type Verdict = Result<Vec<(&'static str, String)>, Refusal>;

/// Refusals and notes so far.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) refusals: Vec<Refusal>,
    pub(crate) notes: Vec<Note>,
}

impl Findings {
    pub(crate) fn refuse(&mut self, refusal: Refusal) {
        self.refusals.push(refusal);
    }

    pub(crate) fn note(&mut self, rule: &'static str, at: impl Into<String>, message: impl Into<String>) {
        self.notes.push(Note::new(rule, at, message));
    }

    /// A verdict on one place.
    pub(crate) fn add(&mut self, verdict: Verdict, at: &dyn Display, value: &str) {
        match verdict {
            Ok(notes) => {
                for (rule, message) in notes {
                    self.note(rule, at.to_string(), message);
                }
            }
            Err(refusal) => self.refuse(refusal.at(at.to_string(), value)),
        }
    }

    /// What had to be known about the machine could not be found out. Said once.
    pub(crate) fn blind(&mut self, why: &str) {
        let refusal = Refusal::internal("numbers-unreadable", &why);
        if !self.refusals.contains(&refusal) {
            self.refusals.push(refusal);
        }
    }

    fn shape(&mut self, at: String, should: &str) {
        let message = format!("this is not {should}");
        let help = format!("write {should}, as the OCI runtime spec has it");
        self.refuse(Refusal::new(Code::UnsafeSpec, "spec-shape", message, help).at(at, ""));
    }

    /// A list of at most `most` items, empty when it is absent.
    pub(crate) fn list<'n, 'a>(&mut self, list: Option<&'n Node<'a>>, most: usize, at: &dyn Display) -> &'n [Node<'a>] {
        match list.map(|node| &node.value) {
            None => &[],
            Some(Value::Array(items)) if items.len() <= most => items,
            Some(Value::Array(items)) => {
                let message = format!("the list has {} items, at most {most} are judged", items.len());
                let refusal = Refusal::new(Code::UnsafeSpec, "spec-size", message, "make the list shorter");
                self.refuse(refusal.at(at.to_string(), ""));
                &[]
            }
            Some(_) => {
                self.shape(at.to_string(), "a list");
                &[]
            }
        }
    }

    /// The strings of a list; whatever else is in it is refused.
    pub(crate) fn strings<'n>(
        &mut self,
        list: Option<&'n Node<'_>>,
        most: usize,
        at: &dyn Display,
    ) -> impl Iterator<Item = &'n str> + Clone + use<'n> {
        let items = self.list(list, most, at);
        if let Some(index) = items.iter().position(|item| item.as_str().is_none()) {
            self.shape(format!("{at}/{index}"), "a string");
        }
        items.iter().filter_map(Node::as_str)
    }

    /// A string member of an object that stands at `at`.
    pub(crate) fn text<'n>(&mut self, object: &'n Node<'_>, key: &str, at: &dyn Display) -> Option<&'n str> {
        let node = object.get(key)?;
        let text = node.as_str();
        if text.is_none() {
            self.shape(format!("{at}/{key}"), "a string");
        }
        text
    }
}
