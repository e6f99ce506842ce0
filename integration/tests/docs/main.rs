//! What the documents say is so: every command in them runs on a make-believe node, or says why it does not; every key of the
//! configuration has its row; every link leads somewhere.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod blocks;
mod json;
mod policy;
mod room;

use std::fs;
use std::path::{Path, PathBuf};

use blocks::{Block, Mark};
use integration::{Result, must, root_for, say};
use room::Room;

fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The pages for users, the first one first.
fn pages() -> Vec<PathBuf> {
    let listed = fs::read_dir(project().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<PathBuf> = listed.filter(|path| path.extension().is_some_and(|ext| ext == "md")).collect();
    pages.sort();
    pages.insert(0, project().join("README.md"));
    pages
}

#[test]
fn commands_run_or_say_why_not() -> Result<()> {
    if !root_for("commands_run_or_say_why_not") {
        return Ok(());
    }
    let Some(room) = Room::new("commands_run_or_say_why_not")? else { return Ok(()) };
    let (mut wrong, mut ran, mut skipped) = (Vec::new(), 0, 0);
    for page in pages() {
        room.clear()?;
        for block in blocks::of(&fs::read_to_string(&page).unwrap()) {
            let place = format!("{}:{}", page.strip_prefix(project()).unwrap().display(), block.line);
            match &block.mark {
                Mark::Skip => skipped += 1,
                Mark::Run { fails } => {
                    ran += 1;
                    if let Err(why) = tried(&room, &block, fails.as_deref()) {
                        wrong.push(format!("{place}: {why}"));
                    }
                }
                Mark::Other => {}
            }
        }
    }
    say(format_args!("docs: {ran} blocks run, {skipped} with a reason why not"));
    must(wrong.is_empty(), wrong.join("\n"))?;
    must(ran > 20, "the documents lost their commands")
}

fn tried(room: &Room, block: &Block, fails: Option<&str>) -> Result<()> {
    let ran = room.run(&block.text)?;
    let told = format!("{}{}", ran.stdout, ran.stderr);
    match fails {
        None => must(ran.ok(), format_args!("{:?}: {told}", ran.status.code())),
        Some(word) => {
            must(!ran.ok() && told.contains(word), format_args!("{:?}, no {word}: {told}", ran.status.code()))
        }
    }
}

/// A block of commands without a mark is one that nobody tried.
#[test]
fn every_block_says_what_it_is() {
    let mut wrong = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let marks = blocks::marks(&text).into_iter().filter_map(|(line, mark)| Some((line, mark.err()?)));
        wrong.extend(marks.map(|(line, why)| format!("{}:{line}: {why}", page.display())));
    }
    assert_eq!(wrong, Vec::<String>::new());
    // What is no mark is found out.
    for (info, sound) in
        [("sh", false), ("", false), ("sh skip:", false), ("sh skip: needs a cluster", true), ("sh run", true)]
    {
        let page = format!("text\n```{info}\ntrue\n```\n");
        assert_eq!(blocks::marks(&page).iter().all(|(_, mark)| mark.is_ok()), sound, "{info:?}");
    }
}

/// Links between pages, and to headings of them.
#[test]
fn links_lead_somewhere() {
    let mut wrong = Vec::new();
    let mut known = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for (before, target) in blocks::links(&text) {
            if target.contains("://") {
                continue;
            }
            known += 1;
            let (file, heading) =
                target.split_once('#').map_or((target, None), |(file, heading)| (file, Some(heading)));
            let path = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            let has = |heading: &str| {
                fs::read_to_string(&path).is_ok_and(|text| blocks::headings(&text).any(|own| own == heading))
            };
            let there = heading.map_or_else(|| path.exists(), has);
            if !there {
                wrong.push(format!("{}: {before}]({target})", page.display()));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert!(known > 30, "{known} links");
}
