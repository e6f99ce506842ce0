//! YAML: what is read as what, what two readers could take for different things, and the writer.

use cdi::spec::{Encoding, read, to_yaml};

use crate::made::{everything, spec, wrong};

fn with(value: &str) -> String {
    format!(
        "cdiVersion: 1.1.0\nkind: v.org/c\nannotations:\n  key: {value}\ndevices:\n- name: a\n  containerEdits: {{env: [A=b]}}\n"
    )
}

#[test]
fn a_plain_word_is_what_every_reader_takes_it_for() {
    for (written, read_as) in [
        ("word", "word"),
        ("\"yes\"", "yes"),
        ("'0x1'", "0x1"),
        ("\"5\"", "5"),
        ("yEs", "yEs"),
        ("0.5.0", "0.5.0"),
        ("0:1", "0:1"),
        ("1g.10gb", "1g.10gb"),
        ("535.161.08", "535.161.08"),
        ("GPU-1c0a", "GPU-1c0a"),
        ("/dev/nvidia0", "/dev/nvidia0"),
        ("a b # comment", "a b"),
        ("|\n    two\n    lines", "two\nlines\n"),
        (">-\n    one\n    line", "one line"),
        ("\"\\u00e9\\t\"", "\u{e9}\t"),
        ("'it''s'", "it's"),
        ("0xyz", "0xyz"),
        ("1e", "1e"),
        ("infinity", "infinity"),
    ] {
        let text = with(written);
        let spec = read(text.as_bytes(), Encoding::Yaml).unwrap_or_else(|problems| panic!("{written}: {problems:?}"));
        assert_eq!(spec.annotations["key"], read_as, "{written}");
    }
}

#[test]
fn what_readers_differ_about_is_refused_on_its_line() {
    for word in ["yes", "No", "ON", "off", "y", "N"] {
        let problems = wrong(with(word).as_bytes(), Encoding::Yaml);
        assert!(problems[0].starts_with(&format!("line 4: {word} is true or false to some")), "{word}: {problems:?}");
    }
    for number in
        ["0666", "0o666", "0x1f", "0b11", "1_000", "+5", "1.5", ".5", "1.", "1e3", "-1E-3", ".inf", "-.Inf", ".NaN"]
    {
        let problems = wrong(with(number).as_bytes(), Encoding::Yaml);
        assert!(problems[0].starts_with(&format!("line 4: {number} is a number to some")), "{number}: {problems:?}");
    }
    for (value, expected) in [
        ("5", "line 4: /annotations/key: it must be a string"),
        ("true", "line 4: /annotations/key: it must be a string"),
        ("~", "line 4: /annotations/key: it must be a string"),
        ("!!str 5", "line 4: the tag tag:yaml.org,2002:str is not read here"),
        ("!x y", "line 4: the tag !x is not read here"),
        ("*none", "the file is not YAML"),
        ("a\n  yes: b", "line 5: yes is true or false"),
        ("a\n  5: b", "line 5: the key \"5\" must be a text"),
        ("a\n  [a]: b", "line 5: a key must be a text"),
        ("a\n  <<: b", "line 5: the merge key << is not read here"),
        ("a\n  key: b", "line 5: /annotations: key \"key\" appears twice"),
    ] {
        let problems = wrong(with(value).as_bytes(), Encoding::Yaml);
        assert!(problems.len() == 1 && problems[0].contains(expected), "{value:?}: {problems:?}");
    }
    let two = format!("---\n{}---\n{}", with("a"), with("b"));
    assert!(wrong(two.as_bytes(), Encoding::Yaml)[0].contains("line 9: a second document begins here"), "{two}");
}

#[test]
fn numbers_are_read_in_decimal() {
    let text = |mode: &str| {
        format!(
            "cdiVersion: 1.1.0\nkind: v.org/c\ndevices:\n- name: a\n  containerEdits:\n    deviceNodes:\n    - path: /dev/a\n      fileMode: {mode}\n"
        )
    };
    let spec = read(text("438").as_bytes(), Encoding::Yaml).unwrap();
    assert_eq!(spec.devices[0].container_edits.device_nodes[0].file_mode, Some(0o666));
    // YAML 1.1 reads 438, YAML 1.2 666.
    assert!(wrong(text("0666").as_bytes(), Encoding::Yaml)[0].starts_with("line 8: 0666 is a number to some readers"));
}

#[test]
fn aliases_are_written_out_within_a_bound() {
    let text = "cdiVersion: 1.1.0\nkind: v.org/c\ndevices:\n- name: a\n  containerEdits: &edits {env: [&one A=b]}\n- name: b\n  containerEdits: *edits\n- name: c\n  containerEdits: {env: [*one, B]}\n";
    assert_eq!(
        wrong(text.as_bytes(), Encoding::Yaml),
        ["line 9: /devices/2/containerEdits/env/1: \"B\" must be NAME=VALUE"]
    );
    let spec = read(text.replace(", B", "").as_bytes(), Encoding::Yaml).unwrap();
    assert_eq!(spec.devices[1].container_edits, spec.devices[0].container_edits);
    assert_eq!(spec.devices[2].container_edits.env, ["A=b"]);

    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..9 {
        let all = vec![format!("*a{}", level - 1); 10].join(", ");
        bomb.push_str(&format!("a{level}: &a{level} [{all}]\n"));
    }
    let problems = wrong(bomb.as_bytes(), Encoding::Yaml);
    assert!(problems[0].contains("written out, the file has more than"), "{problems:?}");
    let inside = "a: &a [*a]\n";
    assert!(wrong(inside.as_bytes(), Encoding::Yaml)[0].contains("line 1: an alias stands inside of what it names"));
    let deep = format!("a: {}{}\n", "[".repeat(200), "]".repeat(200));
    assert!(wrong(deep.as_bytes(), Encoding::Yaml)[0].contains("more than 64 deep"));
}

#[test]
fn the_writer_quotes_what_could_be_something_else() {
    let text = to_yaml(&spec(&everything())).unwrap();
    for line in [
        "cdiVersion: \"1.1.0\"",
        "kind: nvidia.com/gpu",
        "  \"on\": \"yes\"",
        "  example.com/made-by: hand",
        "- name: \"0\"",
        "    - path: /dev/nvidia0",
        "      fileMode: 438",
        "      permissions: rw",
        "  - NVIDIA_VISIBLE_DEVICES=void",
        "    enableMonitoring: true",
    ] {
        assert!(text.lines().any(|it| it == line), "{line} in {text}");
    }
    assert!(text.starts_with("---\n"));
}
