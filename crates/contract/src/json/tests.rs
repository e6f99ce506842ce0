//! The strict reader, as tables and properties.

use proptest::prelude::*;

use super::*;

fn rule(text: &str) -> &'static str {
    parse_oci(text.as_bytes()).err().map_or("ok", |e| e.rule)
}

#[test]
fn accepts_what_engines_write() {
    for text in [
        "{}",
        " {\"process\":{\"env\":[\"A=\\u003c\\ud83d\\ude00\"],\"args\":null}}\n",
        "{\"annotations\":{\"Mounts\":\"1\",\"mounts\":\"2\"}}",
        "{\"linux\":{\"resources\":{\"CPU\":{\"Cpus\":\"0\"},\"hugepageLimits\":[{\"pagesize\":\"2MB\"}]}}}",
        "{\"linux\":{\"resources\":{\"unified\":{\"memory.high\":\"1\"},\"pids\":{\"limit\":-1}}},\"x-vendor\":[1.5e3,-0,0]}",
    ] {
        assert_eq!(rule(text), "ok", "{text}");
    }
}

#[test]
fn refuses_what_two_readers_could_read_differently() {
    let deep = format!("{}{}", "[".repeat(65), "]".repeat(65));
    for (text, expected) in [
        ("{\"mounts\":[],\"mounts\":[]}", "json-duplicate-key"),
        ("{\"mounts\":[],\"mo\\u0075nts\":[]}", "json-duplicate-key"),
        ("{\"annotations\":{\"a\":\"1\",\"a\":\"2\"}}", "json-duplicate-key"),
        ("{\"Mounts\":[]}", "json-look-alike-key"),
        ("{\"process\":{\"Env\":[]}}", "json-look-alike-key"),
        ("[]", "json-object"),
        ("null", "json-object"),
        ("{} {}", "json-trailing"),
        ("{}x", "json-trailing"),
        ("/* c */ {}", "json-syntax"),
        ("\u{feff}{}", "json-syntax"),
        ("{\"a\":\"\\ud800\"}", "json-surrogate"),
        ("{\"a\":\"\\ud800\\u0041\"}", "json-surrogate"),
        ("{\"a\":\"\\udc00\"}", "json-surrogate"),
        ("{\"a\":\"x\\u0000y\"}", "json-nul"),
        ("{\"a\":\"tab\there\"}", "json-syntax"),
        ("{\"a\":01}", "json-syntax"),
        ("{\"a\":1.}", "json-syntax"),
        ("{\"a\":+1}", "json-syntax"),
        ("{\"a\":1,}", "json-syntax"),
        ("[1,]", "json-syntax"),
        ("{\"a\"}", "json-syntax"),
        ("{a:1}", "json-syntax"),
        ("", "json-syntax"),
        ("{\"a\":\"", "json-syntax"),
        ("{\"a\":\"\\", "json-syntax"),
        ("nul", "json-syntax"),
        (deep.as_str(), "json-depth"),
    ] {
        assert_eq!(rule(text), expected, "{text}");
    }
    assert_eq!(parse_oci(b"{\"a\":\"\xff\"}").err().map(|e| e.rule), Some("json-utf8"));
    assert_eq!(parse_oci(&vec![b' '; MAX_BYTES + 1]).err().map(|e| e.rule), Some("json-size"));
}

#[test]
fn long_maps_are_checked_too() {
    let members: Vec<String> = (0..200_000).map(|n| format!("\"k{n}\":\"\"")).collect();
    let map = |extra: &str| format!("{{\"annotations\":{{{}{extra}}}}}", members.join(","));
    assert_eq!(rule(&map("")), "ok");
    // Comparing each key with each would take minutes here.
    for twice in ["k0", "k31", "k32", "k33", "k199999"] {
        assert_eq!(rule(&map(&format!(",\"{twice}\":\"\""))), "json-duplicate-key", "{twice}");
    }
}

/// Strings are looked at by eights: what has to be seen is, wherever in them it stands and whatever stands before.
#[test]
fn strings_end_where_they_end() {
    for len in 0..20 {
        for at in 0..=len {
            for (special, before) in ["\"", "\\", "\n", "\u{1f}", "\u{80}", "é", " ", "\u{7f}"]
                .iter()
                .zip(["a", "é", "!", "]", "€", "~"].iter().cycle())
            {
                let text = format!("{}{special}{}", before.repeat(at), "z".repeat(len - at));
                let written = serde_json::to_string(&[&text, "next"]).unwrap();
                let node = parse_data(written.as_bytes()).unwrap();
                let read: Vec<_> = node.items().iter().map(Node::as_str).collect();
                assert_eq!(read, [Some(text.as_str()), Some("next")]);
                let raw = format!("[\"{}\u{1}{}\"]", before.repeat(at), "z".repeat(len - at));
                let error = parse_data(raw.as_bytes()).unwrap_err();
                assert_eq!((error.rule, error.offset), ("json-syntax", 2 + before.len() * at), "{raw:?}");
            }
        }
    }
}

#[test]
fn a_list_is_taken_item_by_item() {
    let text = "{\"a\":[0],\"list\":[1,{\"list\":[2]},[3]],\"b\":{\"list\":[4]}}";
    let mut items = Vec::new();
    let node = parse_taking(text.as_bytes(), "list", &mut |item| items.push(to_value(&item).to_string())).unwrap();
    assert_eq!(items, ["1", "{\"list\":[2]}", "[3]"]);
    assert_eq!(to_value(&node).to_string(), "{\"a\":[0],\"b\":{\"list\":[4]},\"list\":[]}");
    let error = parse_taking(b"{\"list\":[1,{\"b\":}]}", "list", &mut |_| {}).unwrap_err();
    assert_eq!(error.at, "/list/1/b");
}

#[test]
fn errors_name_the_place() {
    let error = parse_oci(b"{\"linux\":{\"devices\":[{\"path\":\"/dev/x\"},{\"Path\":\"y\"}]}}").unwrap_err();
    assert_eq!(error.at, "/linux/devices/1");
    assert!(error.to_string().contains("\"Path\""), "{error}");
}

#[test]
fn numbers_are_whole_or_nothing() {
    for (text, expected) in
        [("195", Some(195)), ("-1", Some(-1)), ("195.0", None), ("1.95e2", None), ("99999999999999999999", None)]
    {
        assert_eq!(parse_data(text.as_bytes()).unwrap().as_i64(), expected, "{text}");
    }
}

#[test]
fn spans_cover_exactly_the_value() {
    let text = "{ \"a\" : [ 1 , {\"b\":\"c\"} ] }";
    let node = parse_oci(text.as_bytes()).unwrap();
    let items = node.get("a").unwrap().items();
    assert_eq!(&text[items[0].span.clone()], "1");
    assert_eq!(&text[items[1].span.clone()], "{\"b\":\"c\"}");
}

proptest! {
    #[test]
    fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse_oci(&bytes);
    }

    #[test]
    fn never_panics_near_json(text in "[\\[\\]{}\",:\\\\u0-9a-f .-]{0,60}") {
        let _ = parse_oci(text.as_bytes());
    }

    #[test]
    fn agrees_with_serde_json(text in "[\\[\\]{}\":,0-9ab .\\\\-]{0,40}") {
        // What we accept, a general reader accepts with the same strings and structure.
        if parse_data(text.as_bytes()).is_ok() {
            prop_assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), "{text}");
        }
    }

    #[test]
    fn quote_round_trips(text in "\\PC{0,30}") {
        let quoted = quote(&text);
        let node = parse_data(quoted.as_bytes()).unwrap();
        prop_assert_eq!(node.as_str(), Some(text.as_str()));
    }
}
