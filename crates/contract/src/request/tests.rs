//! Requests, as tables.

use super::*;

fn words(list: &[(&'static str, &str)]) -> Words {
    let mut words = Words::default();
    for (key, value) in list {
        words.set(key, format!("env:{key}"), (*value).to_owned());
    }
    words
}

fn outcome(asked: Result<Asked, Refusal>) -> String {
    match asked {
        Ok(Asked::Nothing) => "nothing".into(),
        Ok(Asked::Gpus(r)) if r.terms == Terms::default() => format!("{} [{}]", r.count, r.ids.join(" ")),
        Ok(Asked::Gpus(r)) => {
            let Terms { sharing, wait, fallback } = r.terms;
            let sharing = if sharing == Sharing::Owner { "owner" } else { "exclusive" };
            format!("{} [{}] {sharing} {wait} {fallback:?}", r.count, r.ids.join(" "))
        }
        Ok(Asked::Reserved { token, .. }) => format!("token {token}"),
        Err(refusal) => format!("{}/{}", refusal.code.name(), refusal.rule),
    }
}

#[test]
fn words_of_a_tenant() {
    let token = "0123456789abcdef0123456789abcdef";
    for (given, expected) in [
        (vec![], "nothing"),
        (vec![("strict", "true")], "nothing"),
        (vec![("count", "1")], "1 []"),
        (vec![("count", " 2 ")], "2 []"),
        (vec![("ids", "nvidia0,GPU-1234")], "2 [nvidia0 GPU-1234]"),
        (vec![("ids", "nvidia0"), ("count", "1")], "1 [nvidia0]"),
        (vec![("contract", token)], &format!("token {token}")),
        (vec![("count", "0")], "INVALID_GPU_REQUEST/request-count"),
        (vec![("count", "-1")], "INVALID_GPU_REQUEST/request-count"),
        (vec![("count", "+1")], "INVALID_GPU_REQUEST/request-count"),
        (vec![("count", "1.0")], "INVALID_GPU_REQUEST/request-count"),
        (vec![("count", "all")], "INVALID_GPU_REQUEST/request-count"),
        (vec![("count", "")], "INVALID_GPU_REQUEST/request-count"),
        (vec![("count", "4294967296")], "INVALID_GPU_REQUEST/request-count"),
        (vec![("ids", "")], "INVALID_GPU_REQUEST/request-ids"),
        (vec![("ids", "nvidia0,")], "INVALID_GPU_REQUEST/request-ids"),
        (vec![("ids", "nvidia0,NVIDIA0")], "INVALID_GPU_REQUEST/request-ids"),
        (vec![("ids", "a b")], "INVALID_GPU_REQUEST/request-ids"),
        (vec![("ids", "nvidia0"), ("count", "2")], "INVALID_GPU_REQUEST/request-count-ids"),
        (vec![("kind", "a100")], "INVALID_GPU_REQUEST/request-shape"),
        (vec![("count", "1"), ("capabilities", "compute,nonsense")], "INVALID_GPU_REQUEST/request-capabilities"),
        (vec![("count", "1"), ("strict", "true")], "STRICT_GPU_CONFLICT/strict-gpu"),
        (vec![("count", "1"), ("strict", "maybe")], "INVALID_GPU_REQUEST/request-shape"),
        (vec![("count", "1"), ("strict", "false")], "1 []"),
        (vec![("count", "1"), ("sharing", "owner")], "1 [] owner 0 Fail"),
        (vec![("count", "1"), ("strict", "1")], "INVALID_GPU_REQUEST/request-shape"),
        (vec![("count", "1"), ("strict", "")], "1 []"),
        (vec![("count", "1"), ("sharing", "exclusive"), ("fallback", "fail"), ("wait", "0s")], "1 []"),
        (vec![("count", "1"), ("sharing", "everyone")], "INVALID_GPU_REQUEST/request-shape"),
        (vec![("count", "1"), ("wait", "30s")], "1 [] exclusive 30 Fail"),
        (vec![("count", "1"), ("wait", "2h"), ("fallback", "fail")], "1 [] exclusive 7200 Fail"),
        (vec![("count", "1"), ("wait", "1234567890s")], "INVALID_GPU_REQUEST/request-shape"),
        (vec![("wait", "30s")], "INVALID_GPU_REQUEST/request-shape"),
        (vec![("count", "1"), ("wait", "abc")], "INVALID_GPU_REQUEST/request-shape"),
        (vec![("count", "1"), ("wait", "s")], "INVALID_GPU_REQUEST/request-shape"),
        (vec![("count", "1"), ("wait", "30")], "INVALID_GPU_REQUEST/request-shape"),
        (vec![("count", "1"), ("wait", "-1s")], "INVALID_GPU_REQUEST/request-shape"),
        (vec![("count", "1"), ("fallback", "cpu")], "1 [] exclusive 0 Cpu"),
        (vec![("count", "1"), ("fallback", "A100")], "1 [] exclusive 0 Kind(\"a100\")"),
        (vec![("count", "1"), ("fallback", "a/b")], "INVALID_GPU_REQUEST/request-shape"),
        (vec![("contract", token), ("wait", "30s")], "INVALID_GPU_REQUEST/request-shape"),
        (vec![("contract", token), ("wait", "0s")], &format!("token {token}")),
        (vec![("contract", "zz")], "INVALID_GPU_REQUEST/request-token"),
        (vec![("contract", token), ("count", "1")], "INVALID_GPU_REQUEST/request-shape"),
    ] {
        assert_eq!(outcome(words(&given).ask(Source::Environment)), expected, "{given:?}");
    }
}

#[test]
fn documents_of_a_control_plane() {
    for (json, expected) in [
        (
            r#"{"name":"gpu-demo","image":"prod","gpu_count":1,"gpu_ids":["nvidia0"],"command":["/bin/sh","-lc","nvidia-smi"]}"#,
            "1 [nvidia0]",
        ),
        (r#"{"gpu_count":2}"#, "2 []"),
        (r#"{"gpu_count":0}"#, "nothing"),
        (r#"{"gpu_count":0,"gpu_ids":[]}"#, "nothing"),
        (r#"{"gpu_count":0,"strict":true}"#, "nothing"),
        (r#"{"name":"x"}"#, "nothing"),
        (r#"{"gpu_ids":["nvidia0"]}"#, "INVALID_GPU_REQUEST/request-count-ids"),
        (r#"{"gpu_count":2,"gpu_ids":["nvidia0"]}"#, "INVALID_GPU_REQUEST/request-count-ids"),
        (r#"{"gpu_count":1,"gpu_ids":[]}"#, "INVALID_GPU_REQUEST/request-count-ids"),
        (r#"{"gpu_ids":[]}"#, "nothing"),
        (r#"{"gpu_count":2,"gpu_ids":["nvidia0","nvidia0"]}"#, "INVALID_GPU_REQUEST/request-ids"),
        (r#"{"gpu_count":1,"gpu_ids":[""]}"#, "INVALID_GPU_REQUEST/request-ids"),
        (r#"{"gpu_count":1,"gpu_ids":[0]}"#, "INVALID_GPU_REQUEST/request-ids"),
        (r#"{"gpu_count":1,"gpu_ids":"nvidia0"}"#, "INVALID_GPU_REQUEST/request-ids"),
        (r#"{"gpu_count":-1}"#, "INVALID_GPU_REQUEST/request-count"),
        (r#"{"gpu_count":"1"}"#, "INVALID_GPU_REQUEST/request-count"),
        (r#"{"gpu_count":1.0}"#, "INVALID_GPU_REQUEST/request-count"),
        (r#"{"gpu_count":1,"gpus":1}"#, "INVALID_GPU_REQUEST/request-unknown-key"),
        (r#"{"gpu_count":1,"GPU_ids":["nvidia0"]}"#, "INVALID_GPU_REQUEST/request-unknown-key"),
        (r#"{"gpu_count":1,"gpu_count":2}"#, "INVALID_GPU_REQUEST/json-duplicate-key"),
        (r#"{"gpu_count":1,"strict":true}"#, "STRICT_GPU_CONFLICT/strict-gpu"),
        (r#"{"gpu_count":1,"strict":"true"}"#, "INVALID_GPU_REQUEST/request-shape"),
        (r#"[]"#, "INVALID_GPU_REQUEST/request-shape"),
        (r#"{"gpu_count":1"#, "INVALID_GPU_REQUEST/json-syntax"),
    ] {
        assert_eq!(outcome(from_json(json.as_bytes())), expected, "{json}");
    }
}

#[test]
fn what_is_wrong_is_told_with_what_is_offered_and_without_the_token() {
    let told = |json: &str| from_json(json.as_bytes()).unwrap_err().to_string();
    let missing = told(r#"{"gpu_ids":["nvidia0"]}"#);
    assert!(missing.contains("gpu_count is missing, and gpu_ids has 1"), "{missing}");
    let unknown = told(r#"{"gpu_count":1,"gpu_cuont":1}"#);
    assert!(
        unknown.ends_with("known keys are gpu_count, gpu_ids, gpu_kind, gpu_profile, gpu_capabilities"),
        "{unknown}"
    );
    let token = "0123456789abcdef0123456789abcdef";
    for more in [("count", "1"), ("ids", "nvidia0"), ("strict", "true"), ("wait", "3s"), ("strict", "x")] {
        let refusal = words(&[("contract", token), more]).ask(Source::Environment).unwrap_err();
        assert!(!format!("{refusal:?}").contains(token), "{more:?}: {refusal:?}");
    }
}

#[test]
fn a_request_knows_where_its_words_stand() {
    let Ok(Asked::Gpus(request)) = words(&[("count", "1"), ("kind", "a100")]).ask(Source::Environment) else {
        panic!()
    };
    assert_eq!((request.place("kind"), request.place("count")), ("env:kind", "env:count"));
    assert_eq!(request.place("capabilities"), "env:count", "what was not said follows from what was");
    let json = r#"{"gpu_count":1,"gpu_ids":["nvidia0"],"gpu_capabilities":"compute"}"#;
    let Ok(Asked::Gpus(request)) = from_json(json.as_bytes()) else { panic!() };
    assert_eq!((request.place("ids"), request.place("count")), ("/gpu_ids", "/gpu_count"));
    assert_eq!((request.place("capabilities"), request.place("kind")), ("/gpu_capabilities", "/gpu_ids"));
}
