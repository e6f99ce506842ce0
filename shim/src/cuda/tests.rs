//! What becomes of findings under each policy. The verdicts themselves have their tests in `contract`.

use contract::Products;
use contract::capability::Capabilities;
use contract::inventory::Facts;
use contract::request::{Places, Request, Source};

use super::*;

fn contract(capabilities: &str) -> Contract {
    Contract {
        schema: contract::SCHEMA,
        id: "i".into(),
        key: None,
        request: Request {
            source: Source::CommandLine,
            count: 1,
            ids: Vec::new(),
            kind: None,
            profile: None,
            capabilities: Capabilities::parse(capabilities).unwrap(),
            terms: contract::request::Terms::default(),
            places: Places::default(),
        },
        gpus: Vec::new(),
        nodes: Vec::new(),
        libraries: Vec::new(),
        files: Vec::new(),
        env: Vec::new(),
        facts: Facts { driver_version: Some("535.104.05".into()), ..Facts::default() },
        created: 0,
        products: Products(vec![("NVIDIA GeForce RTX 3090".into(), "8.6".into())]),
    }
}

fn judged(environment: &str, capabilities: &str, policy: cuda::Policy) -> Result<Vec<String>, String> {
    let spec = format!(r#"{{"process":{{"env":["PATH=/bin"{environment}]}}}}"#);
    let spec = contract::json::parse_oci(spec.as_bytes()).unwrap();
    let policy = Policy { cuda: policy, ..Policy::default() };
    let notes = judge(&spec, Some(&contract(capabilities)), &policy).map_err(|refusal| refusal.to_string())?;
    Ok(notes.iter().map(|note| format!("{} {}: {}", note.rule, note.at, note.message)).collect())
}

#[test]
fn warned_refused_or_not_looked_at() {
    use cuda::Policy::{Off, Refuse, Warn};
    let (old, new) = (r#","CUDA_VERSION=12.8.1""#, r#","CUDA_VERSION=13.0.1""#);
    for (environment, policy, expected) in [
        ("", Refuse, Ok(None)),
        (new, Off, Ok(None)),
        (new, Warn, Ok(Some("cuda-requirement /process/env/1: CUDA_VERSION, cuda>=13.0: needs a newer driver"))),
        (
            new,
            Refuse,
            Err("POLICY: CUDA_VERSION, cuda>=13.0: needs a newer driver (at /process/env: CUDA_VERSION); use an image"),
        ),
        // What runs is never refused.
        (old, Refuse, Ok(Some("CUDA_VERSION, cuda>=12.8: minor version compatibility: it runs"))),
        (
            &format!(r#"{new},"NVIDIA_DISABLE_REQUIRE=true""#),
            Refuse,
            Ok(Some("/process/env/2: NVIDIA_DISABLE_REQUIRE, true: requirements refuse nothing")),
        ),
        (r#","NVIDIA_REQUIRE_CUDA=cuda>=13 brand=tesla""#, Refuse, Err("NVIDIA_REQUIRE_CUDA, cuda>=13.0: ")),
        (
            r#","NVIDIA_REQUIRE_CUDA=nonsense""#,
            Refuse,
            Ok(Some("/process/env/1: NVIDIA_REQUIRE_CUDA, nonsense: no condition")),
        ),
    ] {
        let found = judged(environment, "compute,utility", policy);
        match (&found, expected) {
            (Ok(notes), Ok(None)) => assert!(notes.is_empty(), "{environment} {policy:?}: {notes:?}"),
            (Ok(notes), Ok(Some(part))) => {
                assert!(notes.join("\n").contains(part), "{environment} {policy:?}: {notes:?}")
            }
            (Err(refusal), Err(part)) => assert!(refusal.contains(part), "{environment}: {refusal}"),
            _ => panic!("{environment} {policy:?}: {found:?}"),
        }
    }
}

/// D29: nvidia-smi works, and CUDA is N/A.
#[test]
fn without_compute_cuda_is_not_there_and_its_version_no_matter() {
    let wants = r#","CUDA_VERSION=13.0.1""#;
    let notes = judged(wants, "utility", cuda::Policy::Refuse).unwrap();
    assert!(
        matches!(notes.as_slice(), [one] if one.starts_with("cuda-without-compute") && one.contains("N/A")),
        "{notes:?}"
    );
    assert_eq!(judged(wants, "graphics", cuda::Policy::Refuse), Ok(Vec::new()));
    assert_eq!(judged(wants, "utility", cuda::Policy::Off), Ok(Vec::new()));
    let spec = contract::json::parse_oci(br#"{"process":{"env":["CUDA_VERSION=13.0.1"]}}"#).unwrap();
    let policy = Policy { cuda: cuda::Policy::Refuse, ..Policy::default() };
    assert_eq!(judge(&spec, None, &policy), Ok(Vec::new()), "no GPU, no opinion");
}
