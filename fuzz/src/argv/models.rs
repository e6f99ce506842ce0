//! What runc and crun make of a command line, as far as a container comes of it.

use shim::argv::Call;

/// A command line that is read without an error: flags by their first name, last value.
#[derive(Debug)]
pub(super) struct Model {
    verb: String,
    id: String,
    flags: Vec<(&'static str, String)>,
}

/// A flag's names, the first is what it is known by, and whether it takes a value.
type Flag = (&'static [&'static str], bool);

/// `main.go` and `src/crun.c`; the union of both, so that neither refuses what the other knows.
const GLOBAL: &[Flag] = &[
    (&["log"], true),
    (&["log-format"], true),
    (&["log-level"], true),
    (&["root"], true),
    (&["criu"], true),
    (&["rootless"], true),
    (&["cgroup-manager"], true),
    (&["debug"], false),
    (&["systemd-cgroup"], false),
];
const CREATE: &[Flag] = &[
    (&["bundle", "b"], true),
    (&["console-socket"], true),
    (&["pid-file"], true),
    (&["pidfd-socket"], true),
    (&["preserve-fds"], true),
    (&["config", "f"], true),
    (&["no-pivot"], false),
    (&["no-new-keyring"], false),
    (&["no-subreaper"], false),
    (&["detach", "d"], false),
    (&["keep"], false),
    (&["image-path"], true),
    (&["work-path"], true),
    (&["manage-cgroups-mode"], true),
    (&["tcp-established"], false),
    (&["file-locks"], false),
];
const UPDATE: &[Flag] = &[
    (&["resources", "r"], true),
    (&["memory"], true),
    (&["cpu-period"], true),
    (&["cpu-quota"], true),
    (&["cpu-share"], true),
    (&["pids-limit"], true),
    (&["blkio-weight"], true),
];
const EXEC: &[Flag] = &[
    (&["process", "p"], true),
    (&["console-socket"], true),
    (&["pid-file"], true),
    (&["cwd"], true),
    (&["env", "e"], true),
    (&["user", "u"], true),
    (&["cap", "c"], true),
    (&["preserve-fds"], true),
    (&["tty", "t"], false),
    (&["detach", "d"], false),
    (&["no-new-privs"], false),
];
const DELETE: &[Flag] = &[(&["force", "f"], false)];

fn flags_of(verb: &str) -> Option<&'static [Flag]> {
    Some(match verb {
        "create" | "run" | "restore" => CREATE,
        "update" => UPDATE,
        "exec" => EXEC,
        "delete" => DELETE,
        _ => return None,
    })
}

impl Model {
    pub(super) fn opens(&self) -> bool {
        matches!(self.verb.as_str(), "create" | "run" | "restore" | "update")
    }

    /// Whether the verb's flags are in the tables; what is not is read as another verb's.
    pub(super) fn knows(&self, verb: &str) -> bool {
        flags_of(verb).is_some()
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.flags.iter().rev().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn agrees(&self, call: &Call<'_>) -> bool {
        let told = |name: &str, short: &str| call.value_at(name, short).map(|(value, _)| value) == self.value(name);
        let has = |name: &str, short: &str| {
            (call.has(name) || call.has(short)) == self.value(name).is_some_and(|value| value != "false")
        };
        self.verb == call.verb.name()
            && self.id == call.id
            && self.value("bundle").unwrap_or(".") == call.bundle()
            && told("process", "p")
            && told("resources", "r")
            && told("pid-file", "pid-file")
            && has("systemd-cgroup", "systemd-cgroup")
            && told("root", "root")
            && told("log", "log")
            && has("force", "f")
            && has("detach", "d")
    }
}

/// Go's `FlagSet.Parse`: one dash or two, the first word that is no flag ends it, `--` does too and goes.
fn go(flags: &[Flag], words: &[&str], out: &mut Vec<(&'static str, String)>) -> Option<usize> {
    let mut at = 0;
    while let Some(word) = words.get(at) {
        let Some(rest) = word.strip_prefix('-').filter(|rest| !rest.is_empty()) else { break };
        at += 1;
        let rest = rest.strip_prefix('-').unwrap_or(rest);
        if rest.is_empty() {
            break;
        }
        if rest.starts_with(['-', '=']) {
            return None;
        }
        let (name, joined) = rest.split_once('=').map_or((rest, None), |(name, value)| (name, Some(value)));
        let (names, takes) = flags.iter().find(|(names, _)| names.contains(&name))?;
        let value = match (joined, takes) {
            (Some(value), true) => value.to_owned(),
            (None, true) => {
                at += 1;
                (*words.get(at - 1)?).to_owned()
            }
            (None, false) => "true".to_owned(),
            (Some(value), false) => truth(value)?.to_owned(),
        };
        out.push((*names.first()?, value));
    }
    Some(at)
}

/// `strconv.ParseBool`.
fn truth(text: &str) -> Option<&'static str> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some("true"),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some("false"),
        _ => None,
    }
}

/// urfave/cli's `reorderArgs`: flags, and what may be their value, go in front of the other words.
fn reordered<'w>(flags: &[Flag], words: &[&'w str]) -> Vec<&'w str> {
    let is_flag = |word: &str| {
        let bare = word.strip_prefix("--").or_else(|| word.strip_prefix('-')).unwrap_or_default();
        let name = bare.split('=').next().unwrap_or_default();
        word != "-" && word.starts_with('-') && flags.iter().any(|(names, _)| names.contains(&name))
    };
    let (mut front, mut rest) = (Vec::new(), Vec::new());
    let mut may_be_value = false;
    for (index, word) in words.iter().enumerate() {
        // In this order since 1.22.5: `--` may be a value.
        if may_be_value && !is_flag(word) {
            may_be_value = false;
            front.push(*word);
        } else if *word == "--" {
            rest.extend_from_slice(words.get(index..).unwrap_or_default());
            break;
        } else if is_flag(word) {
            front.push(*word);
            may_be_value = !word.contains('=');
        } else {
            rest.push(*word);
        }
    }
    front.extend(rest);
    front
}

/// runc: `None` where it ends with an error or shows its help.
pub(super) fn runc(words: &[&str]) -> Option<Model> {
    let mut flags = Vec::new();
    let at = go(GLOBAL, words, &mut flags)?;
    let verb = (*words.get(at)?).to_owned();
    let known = flags_of(&verb)?;
    let rest = words.get(at + 1..).unwrap_or_default();
    // Its command is the container's own: nothing is moved.
    let rest = if verb == "exec" { rest.to_vec() } else { reordered(known, rest) };
    let mut own = Vec::new();
    let end = go(known, &rest, &mut own)?;
    let words = rest.get(end..).unwrap_or_default();
    let id = (*words.first()?).to_owned();
    // `checkArgs`: exactly one, but for exec.
    if id.is_empty() || (verb != "exec" && words.len() != 1) {
        return None;
    }
    flags.extend(own);
    Some(Model { verb, id, flags })
}

/// `getopt_long` in order: letters may stand together and hold their value, long names may be cut short.
fn getopt(flags: &[Flag], words: &[&str], out: &mut Vec<(&'static str, String)>) -> Option<usize> {
    let mut at = 0;
    while let Some(word) = words.get(at) {
        if !word.starts_with('-') || *word == "-" {
            break;
        }
        at += 1;
        if *word == "--" {
            break;
        }
        let mut next = || {
            at += 1;
            words.get(at - 1).map(|word| (*word).to_owned())
        };
        if let Some(rest) = word.strip_prefix("--") {
            let (name, joined) = rest.split_once('=').map_or((rest, None), |(name, value)| (name, Some(value)));
            let (names, takes) = long(flags, name)?;
            let value = match (joined, takes) {
                (Some(value), true) => value.to_owned(),
                (None, true) => next()?,
                (None, false) => "true".to_owned(),
                (Some(_), false) => return None,
            };
            out.push((*names.first()?, value));
            continue;
        }
        for (index, letter) in word.get(1..)?.char_indices() {
            let is = |name: &&str| name.chars().eq([letter]);
            let (names, takes) = flags.iter().find(|(names, _)| names.iter().any(is))?;
            if *takes {
                let rest = word.get(1 + index + letter.len_utf8()..).unwrap_or_default();
                let value = if rest.is_empty() { next()? } else { rest.to_owned() };
                out.push((*names.first()?, value));
                break;
            }
            out.push((*names.first()?, "true".to_owned()));
        }
    }
    Some(at)
}

fn long<'f>(flags: &'f [Flag], name: &str) -> Option<&'f Flag> {
    let whole = |flag: &&Flag| flag.0.iter().any(|known| known.len() > 1 && *known == name);
    let cut = |flag: &&Flag| flag.0.iter().any(|known| known.len() > 1 && known.starts_with(name));
    let mut candidates = flags.iter().filter(cut);
    flags.iter().find(whole).or_else(|| candidates.next().filter(|_| candidates.next().is_none()))
}

/// crun: `None` where it ends with an error.
pub(super) fn crun(words: &[&str]) -> Option<Model> {
    let mut flags = Vec::new();
    let at = getopt(GLOBAL, words, &mut flags)?;
    let verb = (*words.get(at)?).to_owned();
    let rest = words.get(at + 1..).unwrap_or_default();
    let end = getopt(flags_of(&verb)?, rest, &mut flags)?;
    let words = rest.get(end..).unwrap_or_default();
    let id = (*words.first()?).to_owned();
    if id.is_empty() || (verb != "exec" && words.len() != 1) {
        return None;
    }
    Some(Model { verb, id, flags })
}
