//! `/proc/devices`: what the kernel would write is read back, and of any text every line of a driver's is found.

use node::majors;

use crate::choices::Choices;

const NAMES: &[&str] =
    &["mem", "misc", "nvidia", "nvidia-uvm", "nvidia-caps", "vfio", "gdrdrv", "cpu/cpuid", "/dev/vc/0", "drm", "a b"];

/// Holds the reader to it.
pub fn run(data: &[u8]) {
    assert_eq!(majors(data), plainly(data));
    let mut choices = Choices::new(data);
    let (mut expected, mut text) = (Vec::new(), String::from("Character devices:\n"));
    while !choices.is_empty() && expected.len() < 64 {
        let (major, name) = (choices.u32() >> choices.below(32), (*choices.of(NAMES)).to_owned());
        text.push_str(&format!("{major:3} {name}\n"));
        expected.push((name, major));
    }
    text.push_str("\nBlock devices:\n");
    expected.iter().for_each(|(name, major)| text.push_str(&format!("{major:3} {name}\n")));
    assert_eq!(majors(text.as_bytes()), expected, "{text}");
}

/// The same by another way: byte by byte, with no more than a number, a blank and a name.
fn plainly(data: &[u8]) -> Vec<(String, u32)> {
    let text = String::from_utf8_lossy(data);
    let mut found = Vec::new();
    let mut inside = false;
    for line in text.split('\n') {
        let line = line.strip_suffix('\r').unwrap_or(line);
        if !inside {
            inside = line.starts_with("Character devices:");
        } else if line.starts_with("Block devices:") {
            break;
        } else {
            let line = line.trim_start();
            let digits = line.find(' ').unwrap_or(0);
            let (number, name) = line.split_at(digits);
            if let Ok(number) = number.parse() {
                found.push((name.trim().to_owned(), number));
            }
        }
    }
    found
}
