//! `quilt-bench`: counts and times what quilt-gpu costs. `make bench` runs it.
#![allow(clippy::print_stdout)]

use bench::{count, figures};
use integration::Result;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["count"] => figures::measured().map(|(size, figures)| print!("{}", figures::text(size, &figures))),
        ["trace", name] => figures::each(|scene| {
            if scene.name == *name {
                println!("{}", count::traced(scene)?);
            }
            Ok(())
        }),
        ["profile", name, file] => figures::each(|scene| {
            if scene.name == *name {
                println!("{}", count::instructions(scene, file)?);
            }
            Ok(())
        }),
        _ => Ok(()),
    }
}
