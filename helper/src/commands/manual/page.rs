//! `docs/commands.md` from the definitions of the command line. A page that says something else fails; with
//! `QUILT_WRITE_DOCS=1` in the environment it is written anew.

use std::fmt::Write;
use std::path::Path;

use clap::{Arg, Command, CommandFactory};

use crate::cli::Cli;

const HEAD: &str = "# Commands\n\nMade from the definitions of the command line: `quilt-gpu COMMAND --help` says the same, with values \
                    and defaults. What\n`--format json` prints: [json.md](json.md).\n";

fn page() -> String {
    let mut command = Cli::command();
    command.build();
    let mut page = HEAD.to_owned();
    page += "\n## Everywhere\n\n| option | what it means |\n| --- | --- |\n";
    let global: Vec<&Arg> = command.get_arguments().filter(|arg| arg.is_global_set()).collect();
    global.iter().for_each(|arg| row(&mut page, arg));
    page += "\nExit status: 0 done, 1 refused or not so, 2 wrong usage or configuration, 3 not ready (try again), 4 our own failure.\n";
    for sub in shown(&command) {
        section(&mut page, sub, &format!("quilt-gpu {}", sub.get_name()));
    }
    page
}

fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help")
}

fn section(page: &mut String, command: &Command, name: &str) {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let _ = write!(page, "\n## {name}\n\n{about}.\n");
    let args: Vec<&Arg> = command
        .get_arguments()
        .filter(|arg| {
            !arg.is_global_set() && !arg.is_hide_set() && !matches!(arg.get_id().as_str(), "help" | "version")
        })
        .collect();
    if !args.is_empty() {
        *page += "\n| option | what it means |\n| --- | --- |\n";
        args.into_iter().for_each(|arg| row(page, arg));
    }
    for sub in shown(command) {
        section(page, sub, &format!("{name} {}", sub.get_name()));
    }
}

fn row(page: &mut String, arg: &Arg) {
    let value = arg.get_num_args().is_some_and(|many| many.takes_values()).then(|| {
        let names = arg.get_value_names().unwrap_or_default();
        names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    });
    let option = match (arg.get_long(), value) {
        (Some(long), Some(value)) => format!("--{long} {value}"),
        (Some(long), None) => format!("--{long}"),
        (None, value) => value.unwrap_or_else(|| arg.get_id().to_string()),
    };
    let mut help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let words: Vec<String> = arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    if !words.is_empty() && arg.get_num_args().is_some_and(|many| many.takes_values()) {
        let _ = write!(help, ": {}", words.join(", "));
    }
    let option = option.replace('|', "\\|");
    let _ = writeln!(page, "| `{option}` | {} |", help.replace('|', "\\|").replace('\n', " "));
}

#[test]
fn the_page_of_commands_says_what_they_are() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/commands.md");
    if std::env::var_os("QUILT_WRITE_DOCS").is_some() {
        std::fs::write(&path, page()).unwrap();
    }
    let told = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        told,
        page(),
        "QUILT_WRITE_DOCS=1 cargo test -p helper the_page_of_commands writes docs/commands.md anew"
    );
}
