//! `quilt-bench`: counts and times what quilt-gpu costs. `make bench` runs it.
#![allow(clippy::print_stdout)]

use std::path::Path;

use bench::contests::{self, alone, at_once, crowded, machine, over, version};
use bench::grace::Expedited;
use bench::peer::Nvidia;
use bench::report::{self, Measured};
use bench::{count, figures, growth};
use integration::{Error, Result};

const HELP: &str = "quilt-bench run DOCS [ROUNDS]      everything, into DOCS/benchmarks.md and its drawings
quilt-bench count                  the counts that are held to a file
quilt-bench trace SCENE            the system calls of one of them
quilt-bench over RUNTIME           the system calls of a create with a GPU over this runtime, verification included
quilt-bench beside MANY            the system calls of a create beside so many contracts in force
quilt-bench again SCENE MANY       makes the call so many times by a program named quilt-timed, for perf record --comm
quilt-bench profile SCENE FILE     where its instructions are, for callgrind_annotate";

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["run", docs] => all(Path::new(docs), 100),
        ["run", docs, rounds] => {
            all(Path::new(docs), rounds.parse().map_err(|_| Error::new(format!("{rounds} is no number of rounds")))?)
        }
        ["count"] => figures::measured().map(|(size, figures)| print!("{}", figures::text(size, &figures))),
        ["trace", name] => one(name, |scene| count::traced(scene).map(|trace| print!("{trace}"))),
        ["over", runtime] => contests::created_over(Path::new(runtime)).map(|trace| print!("{trace}")),
        ["beside", many] => {
            let many: usize = many.parse().map_err(|_| Error::new(format!("{many} is no number")))?;
            growth::traced_beside(many).map(|trace| print!("{trace}"))
        }
        ["again", name, many] => {
            let many: usize = many.parse().map_err(|_| Error::new(format!("{many} is no number")))?;
            one(name, |scene| count::again(scene, many))
        }
        ["profile", name, file] => {
            one(name, |scene| count::instructions(scene, file).map(|told| println!("{told} instructions")))
        }
        _ => {
            println!("{HELP}");
            Ok(())
        }
    }
}

fn one(name: &str, act: impl Fn(&bench::scene::Scene<'_>) -> Result<()>) -> Result<()> {
    figures::each(|scene| if scene.name == name { act(scene) } else { Ok(()) })
}

fn all(docs: &Path, rounds: usize) -> Result<()> {
    let (runc, crun) = ("/usr/sbin/runc", "/usr/bin/crun");
    let date = std::process::Command::new("date").args(["--utc", "+%d %B %Y"]).output();
    let date = date.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned()).unwrap_or_default();
    let peer = Nvidia::given().map_or("NVIDIA's runtime: not given (PEER=)".to_owned(), |peer| {
        format!("NVIDIA's runtime in cdi mode: {}", peer.version())
    });
    let grace = Expedited::new();
    let head = vec![
        format!("{date}, quilt-gpu {}", env!("CARGO_PKG_VERSION")),
        machine(),
        format!("{}; {}", version(runc), version(crun)),
        peer,
        grace.told(),
        "no GPU: a made-up node, whose driver files are stand-ins".to_owned(),
    ];
    let crowded = crowded();
    println!("wrappers alone");
    let alone = alone(rounds)?;
    let mut races = Vec::new();
    for (name, path) in [("crun", crun), ("runc", runc)] {
        println!("containers over {name}");
        races.push((name.to_owned(), over(Path::new(path), rounds)?));
    }
    println!("sixty-four at once");
    let at_once = at_once(rounds.div_ceil(5))?;
    println!("counts");
    let counts = figures::measured()?;
    let mut memory = Vec::new();
    figures::each(|scene| {
        memory.push((scene.name.clone(), count::memory(scene)?));
        Ok(())
    })?;
    let measured = Measured { head, crowded, alone, over: races, at_once, counts, memory, growth: growth::all()? };
    report::write(docs, &measured)
}
