//! The command line, in runc's grammar: a table of verbs and their flags, and one reader for all. Nothing is done here.
//!
//! What is not in the table is an error that names it: a flag that was skipped could have been a restriction.

use std::collections::VecDeque;

/// Flags that stand before the verb. `=` ends those that take a value, commas part names of one flag.
const GLOBAL: &[&str] =
    &["debug", "log=", "log-format=", "root=", "criu=", "rootless=", "systemd-cgroup", "help,h", "version,v"];

/// A verb: its name, its flags, how many words follow at least and at most, and whether flags end at the first word.
struct Verb(&'static str, &'static [&'static str], usize, usize, bool);

const VERBS: &[Verb] = &[
    Verb(
        "create",
        &["bundle,b=", "console-socket=", "pid-file=", "no-pivot", "no-new-keyring", "preserve-fds="],
        1,
        1,
        false,
    ),
    Verb("start", &[], 1, 1, false),
    Verb(
        "run",
        &[
            "bundle,b=",
            "console-socket=",
            "pid-file=",
            "no-pivot",
            "no-new-keyring",
            "preserve-fds=",
            "detach,d",
            "keep",
            "no-subreaper",
        ],
        1,
        1,
        false,
    ),
    Verb("state", &[], 1, 1, false),
    Verb("kill", &["all,a"], 1, 2, false),
    Verb("delete", &["force,f"], 1, 1, false),
    Verb("list", &["format,f=", "quiet,q"], 0, 0, false),
    Verb("ps", &["format,f="], 1, usize::MAX, true),
    Verb(
        "exec",
        &[
            "console-socket=",
            "cwd=",
            "env,e=",
            "tty,t",
            "user,u=",
            "additional-gids,g=",
            "process,p=",
            "detach,d",
            "pid-file=",
            "process-label=",
            "apparmor=",
            "no-new-privs",
            "cap,c=",
            "preserve-fds=",
            "cgroup=",
            "ignore-paused",
            "no-subreaper",
        ],
        1,
        usize::MAX,
        true,
    ),
    Verb("pause", &[], 1, 1, false),
    Verb("resume", &[], 1, 1, false),
    Verb("events", &["interval=", "stats"], 1, 1, false),
    Verb(
        "update",
        &[
            "resources,r=",
            "blkio-weight=",
            "cpu-period=",
            "cpu-quota=",
            "cpu-burst=",
            "cpu-share=",
            "cpu-rt-period=",
            "cpu-rt-runtime=",
            "cpuset-cpus=",
            "cpuset-mems=",
            "cpu-idle=",
            "kernel-memory=",
            "kernel-memory-tcp=",
            "memory=",
            "memory-reservation=",
            "memory-swap=",
            "pids-limit=",
            "l3-cache-schema=",
            "mem-bw-schema=",
        ],
        1,
        1,
        false,
    ),
    Verb("features", &[], 0, 0, false),
    Verb("spec", &["bundle,b=", "rootless"], 0, 0, false),
];

/// What was given for flags, in order: the flag's first name and its value.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags(Vec<(&'static str, String)>);

impl Flags {
    /// The last value of a flag.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(flag, _)| *flag == name).map(|(_, value)| value.as_str())
    }

    /// Every value of a flag that may be repeated.
    pub(crate) fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(flag, _)| *flag == name).map(|(_, value)| value.as_str())
    }

    /// Whether a flag without a value is set.
    pub(crate) fn is(&self, name: &str) -> bool {
        self.value(name).is_some_and(|value| matches!(value, "true" | "1" | "t" | "T" | "TRUE" | "True"))
    }

    /// The value of a flag as a number.
    ///
    /// # Errors
    /// What is no number, and of which flag.
    pub(crate) fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, String> {
        let parse = |value: &str| value.parse().map_err(|_| format!("--{name} wants a number, not {value:?}"));
        self.value(name).map(parse).transpose()
    }
}

/// One call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) global: Flags,
    /// Empty where only help or the version was asked for.
    pub(crate) verb: &'static str,
    pub(crate) flags: Flags,
    pub(crate) words: Vec<String>,
}

impl Call {
    /// The container's id, which [`parse`] made sure of.
    pub(crate) fn id(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }
}

/// Reads a command line without the program's name.
///
/// # Errors
/// The word that is wrong and, of global flags, whatever was read before it: `--log` says where the error belongs.
pub(crate) fn parse(words: impl Iterator<Item = String>) -> Result<Call, (String, Flags)> {
    let mut words: VecDeque<String> = words.collect();
    let mut global = Flags::default();
    match rest(&mut words, &mut global) {
        Ok((verb, flags, words)) => Ok(Call { global, verb, flags, words }),
        Err(why) => Err((why, global)),
    }
}

fn rest(words: &mut VecDeque<String>, global: &mut Flags) -> Result<(&'static str, Flags, Vec<String>), String> {
    take(words, GLOBAL, global, true)?;
    let Some(name) = words.pop_front() else {
        return if global.is("help") || global.is("version") {
            Ok(("", Flags::default(), Vec::new()))
        } else {
            Err("no command: see --help".into())
        };
    };
    let Some(Verb(verb, table, least, most, stops)) = VERBS.iter().find(|verb| verb.0 == name) else {
        return Err(match name.as_str() {
            "checkpoint" | "restore" => format!("{name}: this engine takes no checkpoints; use runc or crun for that"),
            _ => format!("unknown command {name:?}: see --help"),
        });
    };
    let mut flags = Flags::default();
    let rest = take(words, table, &mut flags, *stops)?;
    if rest.len() < *least || rest.len() > *most {
        return Err(format!("{verb}: {} words where {least} to {most} are wanted", rest.len()));
    }
    Ok((verb, flags, rest))
}

/// Takes flags of `table`; the words that are none, or with `stops` all from the first of them on, come back.
fn take(
    words: &mut VecDeque<String>,
    table: &'static [&'static str],
    flags: &mut Flags,
    stops: bool,
) -> Result<Vec<String>, String> {
    let mut others = Vec::new();
    while let Some(word) = words.pop_front() {
        if word == "--" {
            others.extend(words.drain(..));
        } else if word == "-" || !word.starts_with('-') {
            // The global flags end at the verb, which stays where it is.
            if stops && std::ptr::eq(table, GLOBAL) {
                words.push_front(word);
                break;
            }
            others.push(word);
            if stops {
                others.extend(words.drain(..));
            }
        } else {
            let text = word.strip_prefix("--").or_else(|| word.strip_prefix('-')).unwrap_or(&word);
            let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
            let (name, wants) = known(table, name).ok_or_else(|| format!("unknown flag {word:?}"))?;
            let value = match (value, wants) {
                (Some(value), _) => value.to_owned(),
                (None, false) => "true".to_owned(),
                (None, true) => words.pop_front().ok_or_else(|| format!("{word} wants a value"))?,
            };
            flags.0.push((name, value));
        }
    }
    Ok(others)
}

/// A flag's first name, and whether it takes a value.
fn known(table: &'static [&'static str], name: &str) -> Option<(&'static str, bool)> {
    table.iter().find_map(|entry| {
        let names = entry.trim_end_matches('=');
        let first = names.split(',').next()?;
        names.split(',').any(|known| known == name).then_some((first, names.len() < entry.len()))
    })
}

/// What can be asked for.
pub(crate) fn help() -> String {
    let mut text = String::from(
        "quilt-gpu-engine, a low-level runtime in runc's words\n\n\
         usage: quilt-gpu-engine [global flags] COMMAND [flags] [words]\n\nglobal flags:",
    );
    let list = |text: &mut String, table: &[&str]| {
        for flag in table {
            let names = flag.trim_end_matches('=');
            let shown: Vec<String> =
                names.split(',').map(|n| if n.len() == 1 { format!("-{n}") } else { format!("--{n}") }).collect();
            text.push_str(&format!(" {}{}", shown.join("|"), if names.len() < flag.len() { " VALUE" } else { "" }));
        }
        text.push('\n');
    };
    list(&mut text, GLOBAL);
    text.push_str("\ncommands:\n");
    for Verb(name, table, ..) in VERBS {
        text.push_str(&format!("  {name}"));
        list(&mut text, table);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Call, String> {
        parse(line.split(' ').filter(|w| !w.is_empty()).map(str::to_owned)).map_err(|(why, _)| why)
    }

    #[test]
    fn what_engines_write_is_read() {
        let call =
            read("--root /r --log /l --log-format json create --bundle /b --pid-file=/p -preserve-fds 3 id").unwrap();
        assert_eq!((call.verb, call.id(), call.global.value("root")), ("create", "id", Some("/r")));
        assert_eq!((call.flags.value("bundle"), call.flags.value("pid-file")), (Some("/b"), Some("/p")));
        assert_eq!(call.flags.number::<i32>("preserve-fds"), Ok(Some(3)));
        // Flags behind the id count, but those of a command to run are its own.
        assert!(read("delete id --force").unwrap().flags.is("force"));
        assert!(!read("delete --force=false id").unwrap().flags.is("force"));
        let call = read("exec -e A=1 --env B=2 -d id ls -l -- x").unwrap();
        assert_eq!(call.words, ["id", "ls", "-l", "--", "x"]);
        assert_eq!(call.flags.values("env").collect::<Vec<_>>(), ["A=1", "B=2"]);
        assert_eq!(read("kill id 9").unwrap().words, ["id", "9"]);
        assert_eq!(read("-v").unwrap().verb, "");
    }

    #[test]
    fn what_is_not_in_the_table_is_named() {
        for (line, part) in [
            ("create --magic id", "--magic"),
            ("--magic create id", "--magic"),
            ("create", "0 words"),
            ("start a b", "2 words"),
            ("create id --bundle", "--bundle wants a value"),
            ("checkpoint id", "no checkpoints"),
            ("frobnicate", "frobnicate"),
            ("", "no command"),
        ] {
            let why = read(line).unwrap_err();
            assert!(why.contains(part), "{line}: {why}");
        }
    }
}
