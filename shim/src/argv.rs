//! The command line, in runc's grammar.
//!
//! The low-level runtime gets the same words, so whatever two readers could take differently is refused before
//! `create`, `run`, `restore`, `exec` and `update`: unknown flags, a flag given twice, words after the container id. Anything
//! in front of other verbs passes: those open nothing.

use contract::{Code, Refusal};

/// Verbs that are ours; everything else goes straight on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Make a container, not yet running its program.
    Create,
    /// Make, start, wait, remove.
    Run,
    /// Make from a checkpoint.
    Restore,
    /// Another process in a container.
    Exec,
    /// Change limits.
    Update,
    /// Remove.
    Delete,
}

impl Verb {
    fn of(word: &[u8]) -> Option<Self> {
        Some(match word {
            b"create" => Self::Create,
            b"run" => Self::Run,
            b"restore" => Self::Restore,
            b"exec" => Self::Exec,
            b"update" => Self::Update,
            b"delete" => Self::Delete,
            _ => return None,
        })
    }

    /// Whether the verb brings a container into being.
    #[must_use]
    pub(crate) fn makes(self) -> bool {
        matches!(self, Self::Create | Self::Run | Self::Restore)
    }

    /// Whether it can change what a container may open.
    pub(crate) fn opens(self) -> bool {
        self.makes() || self == Self::Update
    }

    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Run => "run",
            Self::Restore => "restore",
            Self::Exec => "exec",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }

    /// The verb's flags: those with a value, and those without. runc 1.0 to 1.3, crun 1.x.
    fn flags(self) -> (&'static [&'static str], &'static [&'static str]) {
        match self {
            Self::Create => (
                &["bundle", "b", "console-socket", "pid-file", "pidfd-socket", "preserve-fds"],
                &["no-pivot", "no-new-keyring", "no-subreaper"],
            ),
            Self::Run => (
                &["bundle", "b", "console-socket", "pid-file", "pidfd-socket", "preserve-fds"],
                &["no-pivot", "no-new-keyring", "detach", "d", "keep", "no-subreaper"],
            ),
            Self::Restore => (
                &[
                    "bundle",
                    "b",
                    "console-socket",
                    "pid-file",
                    "image-path",
                    "work-path",
                    "manage-cgroups-mode",
                    "empty-ns",
                    "lsm-profile",
                    "lsm-mount-context",
                ],
                &[
                    "tcp-established",
                    "ext-unix-sk",
                    "shell-job",
                    "file-locks",
                    "detach",
                    "d",
                    "no-subreaper",
                    "no-pivot",
                    "auto-dedup",
                    "lazy-pages",
                ],
            ),
            Self::Exec => (
                &[
                    "console-socket",
                    "cwd",
                    "env",
                    "e",
                    "user",
                    "u",
                    "additional-gids",
                    "g",
                    "process",
                    "p",
                    "pid-file",
                    "pidfd-socket",
                    "process-label",
                    "apparmor",
                    "cap",
                    "c",
                    "preserve-fds",
                    "cgroup",
                ],
                &["tty", "t", "detach", "d", "no-new-privs", "no-subreaper", "ignore-paused"],
            ),
            Self::Update => (
                &[
                    "resources",
                    "r",
                    "blkio-weight",
                    "cpu-period",
                    "cpu-quota",
                    "cpu-burst",
                    "cpu-share",
                    "cpu-rt-period",
                    "cpu-rt-runtime",
                    "cpuset-cpus",
                    "cpuset-mems",
                    "kernel-memory",
                    "kernel-memory-tcp",
                    "memory",
                    "memory-reservation",
                    "memory-swap",
                    "pids-limit",
                    "l3-cache-schema",
                    "mem-bw-schema",
                    "cpu-idle",
                ],
                &[],
            ),
            Self::Delete => (&[], &["force", "f"]),
        }
    }
}

/// Flags that may be given more than once: each adds to the others.
const REPEATED: &[&str] = &["additional-gids", "cap", "c", "cgroup", "env", "e", "g"];
/// Global flags with a value, of runc and crun.
const GLOBAL_VALUES: &[&str] = &["log", "log-format", "log-level", "root", "criu", "rootless", "cgroup-manager"];
/// Asks for help, and nothing is done besides.
const HELP: &[&str] = &["help", "h"];
/// Global flags without a value.
const GLOBAL_SWITCHES: &[&str] = &["debug", "systemd-cgroup", "help", "h", "version", "v"];

/// A command line with one of our verbs. Words are kept as they came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call<'a> {
    /// The verb.
    pub verb: Verb,
    /// Where the verb stands among the words.
    pub verb_index: usize,
    /// The container id; empty when it is missing (the low-level runtime says so itself).
    pub id: &'a str,
    /// Flags in order: name without dashes, value if it has one, and the index of the word that holds the value.
    flags: Vec<Flag<'a>>,
    /// Whether the words were read to their end without doubt.
    pub clear: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Flag<'a> {
    name: &'a str,
    value: Option<&'a str>,
    word: usize,
}

impl<'a> Call<'a> {
    /// The value of a flag, the last if it was given more than once.
    #[must_use]
    pub(crate) fn value(&self, name: &str) -> Option<&'a str> {
        self.flags.iter().rev().find(|f| f.name == name).and_then(|f| f.value)
    }

    /// The value of a flag by its long or short name, and the index of the word that holds it.
    #[must_use]
    pub fn value_at(&self, long: &str, short: &str) -> Option<(&'a str, usize)> {
        let flag = self.flags.iter().rev().find(|f| f.name == long || f.name == short)?;
        flag.value.map(|value| (value, flag.word))
    }

    /// All values of a flag that may be given more than once, with the words that hold them.
    pub(crate) fn values_of(&self, long: &str, short: &str) -> impl Iterator<Item = (&'a str, usize)> {
        let named = self.flags.iter().filter(move |flag| flag.name == long || flag.name == short);
        named.filter_map(|flag| Some((flag.value?, flag.word)))
    }

    /// Whether a flag is there.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.flags.iter().any(|flag| flag.name == name)
    }

    /// The bundle as it was named; the current folder when it was not.
    #[must_use]
    pub fn bundle(&self) -> &'a str {
        self.value_at("bundle", "b").map_or(".", |(value, _)| value)
    }
}

/// What to do with a command line.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// Not ours: hand over untouched.
    Pass,
    /// Ours.
    Ours(Call<'a>),
}

/// Finds the verb without allocating: the first word that is not a flag or a flag's value.
///
/// Returns `None` when nothing of it is ours, so that a pass-through costs this loop and nothing else.
pub fn quick_verb<'a>(words: impl Iterator<Item = &'a [u8]>) -> Option<Verb> {
    let mut skip = false;
    let mut doubt = false;
    for word in words {
        if std::mem::take(&mut skip) {
            continue;
        }
        match flag_name(word) {
            Some((name, has_value)) => {
                let known = |list: &[&str]| list.iter().any(|f| f.as_bytes() == name);
                skip = known(GLOBAL_VALUES) && !has_value;
                doubt |= !known(GLOBAL_VALUES) && !known(GLOBAL_SWITCHES);
            }
            // runc goes on behind it, to the verb.
            None if word == b"--" => doubt = true,
            None => match Verb::of(word) {
                Some(verb) if !doubt || verb.opens() => return Some(verb),
                // After an unknown flag the next word may be its value: only the absence of every verb that opens something is safe.
                _ if doubt => {}
                _ => return None,
            },
        }
    }
    None
}

/// The value of a global flag, as far as the words before the verb are plain. What follows may be the tenant's.
pub(crate) fn global<'a>(mut words: impl Iterator<Item = &'a [u8]>, wanted: &str) -> Option<&'a [u8]> {
    loop {
        let word = words.next()?;
        let (name, has_value) = flag_name(word)?;
        let value = if has_value {
            word.splitn(2, |b| *b == b'=').nth(1)
        } else if GLOBAL_VALUES.iter().any(|f| f.as_bytes() == name) {
            words.next()
        } else {
            None
        };
        if name == wanted.as_bytes() {
            return value;
        }
    }
}

/// `--name` or `-name`, with or without `=value`; `-` alone and `--` are words.
fn flag_name(word: &[u8]) -> Option<(&[u8], bool)> {
    let rest = word.strip_prefix(b"-")?;
    let rest = rest.strip_prefix(b"-").unwrap_or(rest);
    if rest.is_empty() {
        return None;
    }
    match rest.iter().position(|b| *b == b'=') {
        Some(end) => Some((rest.get(..end).unwrap_or_default(), true)),
        None => Some((rest, false)),
    }
}

/// Reads the words after the program's name.
///
/// # Errors
/// `UNSAFE_SPEC` naming the word that leaves doubt, before a verb that makes a container.
pub fn parse<'a>(words: &[&'a str]) -> Result<Parsed<'a>, Refusal> {
    let Some(verb) = quick_verb(words.iter().map(|w| w.as_bytes())) else {
        return Ok(Parsed::Pass);
    };
    let mut reader = Reader { words, at: 0, flags: Vec::new(), doubt: None };
    reader.flags_of(GLOBAL_VALUES, GLOBAL_SWITCHES, 0);
    let verb_index = reader.at;
    if reader.words.get(verb_index).and_then(|w| Verb::of(w.as_bytes())) != Some(verb) {
        reader.doubt.get_or_insert((verb_index, "the verb is not where it should be"));
    }
    reader.at += 1;
    let (values, switches) = verb.flags();
    let first = reader.flags.len();
    reader.flags_of(values, switches, first);
    let id_at = reader.at;
    let id = words.get(id_at).copied().unwrap_or("");
    reader.at += 1;
    // runc takes them on both sides of the id, and its users write them so; crun leaves those behind it out.
    if verb == Verb::Update {
        reader.flags_of(values, switches, first);
    }
    // exec: what follows the id is the tenant's command.
    if verb != Verb::Exec
        && let Some(extra) = words.get(reader.at)
        && !extra.is_empty()
    {
        reader.doubt.get_or_insert((reader.at, "nothing may follow the container id"));
    }
    let doubt = reader.doubt;
    // crun takes `-pFILE` and `--cgro G` too: what was not understood may be what leads a process out of its container.
    if let Some((at, why)) = doubt
        && (verb.opens() || verb == Verb::Exec)
    {
        return Err(unclear(words.get(at).copied().unwrap_or(""), at, why));
    }
    Ok(Parsed::Ours(Call { verb, verb_index, id, flags: reader.flags, clear: doubt.is_none() }))
}

fn unclear(word: &str, at: usize, why: &str) -> Refusal {
    let name = word.split('=').next().unwrap_or(word);
    Refusal::new(
        Code::UnsafeSpec,
        "args",
        format!("the command line can be read in two ways: {why}"),
        "call the runtime as containerd and Podman do: --root R --log L create --bundle B --pid-file P ID",
    )
    .at(format!("argv/{}", at + 1), name)
}

struct Reader<'w, 'a> {
    words: &'w [&'a str],
    at: usize,
    flags: Vec<Flag<'a>>,
    doubt: Option<(usize, &'static str)>,
}

impl Reader<'_, '_> {
    /// Reads flags up to the first word that is none. Each may be there once among those from `first` on.
    fn flags_of(&mut self, values: &[&str], switches: &[&str], first: usize) {
        while let Some(word) = self.words.get(self.at).copied() {
            if !word.starts_with('-') || word == "-" {
                return;
            }
            let at = self.at;
            self.at += 1;
            if let Some(letters) = switches_in(word, switches) {
                self.flags.extend(letters.into_iter().map(|name| Flag { name, value: None, word: at }));
                continue;
            }
            let bare = word.strip_prefix("--").unwrap_or_else(|| word.get(1..).unwrap_or(""));
            let (name, inline) = bare.split_once('=').map_or((bare, None), |(n, v)| (n, Some(v)));
            let dashes = word.len() - bare.len();
            // Go takes `-bundle` and `--b`, others read them otherwise.
            if (name.len() == 1) != (dashes == 1) {
                self.doubt.get_or_insert((at, "one dash for one letter, two for a word"));
            }
            // To crun the value of `-b=B` is `=B`. What a switch with a value means, each takes otherwise.
            if inline.is_some() && (dashes == 1 || switches.contains(&name)) {
                self.doubt
                    .get_or_insert((at, "a value stands behind a word with two dashes only, and behind no switch"));
            }
            let (value, held) = match (values.contains(&name), inline) {
                (true, Some(value)) => (Some(value), at),
                (true, None) => {
                    self.at += 1;
                    (self.words.get(at + 1).copied(), at + 1)
                }
                (false, _) => {
                    if !switches.contains(&name) && !HELP.contains(&name) {
                        self.doubt.get_or_insert((at, "unknown flag"));
                    }
                    (None, at)
                }
            };
            if values.contains(&name) && value.is_none_or(str::is_empty) {
                self.doubt.get_or_insert((at, "the flag has no value"));
            }
            // runc puts flags in front of other words before it reads them; `-` and `-1` stay where they are.
            if held != at && value.is_some_and(looks_like_a_flag) {
                self.doubt.get_or_insert((held, "the flag's value looks like a flag"));
            }
            if !REPEATED.contains(&name) && self.flags.iter().skip(first).any(|f| long(f.name) == long(name)) {
                self.doubt.get_or_insert((at, "the flag is given twice"));
            }
            self.flags.push(Flag { name, value, word: held });
        }
    }
}

/// `-td`: several switches of one letter in one word.
fn switches_in<'w>(word: &'w str, switches: &[&str]) -> Option<Vec<&'w str>> {
    let letters = word.strip_prefix('-').filter(|letters| letters.len() > 1)?;
    let letters: Vec<_> = letters.split_inclusive(|_: char| true).collect();
    letters.iter().all(|letter| switches.contains(letter)).then_some(letters)
}

fn looks_like_a_flag(value: &str) -> bool {
    matches!(value.as_bytes(), [b'-', b'-' | b'a'..=b'z' | b'A'..=b'Z', ..])
}

fn long(name: &str) -> &str {
    match name {
        "b" => "bundle",
        "d" => "detach",
        "f" => "force",
        "p" => "process",
        "r" => "resources",
        other => other,
    }
}

#[cfg(test)]
mod tests;
