//! The log of a container as CRI has it: a line of output a line, with its time, stream and whether it goes on.

/// Standard output and standard error.
pub(super) fn streams(log: &str) -> (String, String) {
    let (mut out, mut err) = (String::new(), String::new());
    for line in log.split_inclusive('\n') {
        let mut words = line.splitn(4, ' ').skip(1);
        let (Some(stream), Some(tag), Some(text)) = (words.next(), words.next(), words.next()) else { continue };
        let stream = if stream == "stderr" { &mut err } else { &mut out };
        stream.push_str(if tag.starts_with('P') { text.trim_end_matches('\n') } else { text });
    }
    (out, err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_joined_and_streams_told_apart() {
        let log = "T stdout P {\"a\": \nT stderr F no  such\nT stdout F 1}\nT stdout F \nT stdout F b c";
        assert_eq!(streams(log), ("{\"a\": 1}\n\nb c".to_owned(), "no  such\n".to_owned()));
        assert_eq!(streams("broken\n"), (String::new(), String::new()));
    }
}
