//! The part of Kubernetes's API that our manifests use, by its reference documentation: which fields there are, and of
//! what kind. A field that is not here does not exist, or is to be looked up and put in.

use serde_json::{Value, json};

/// Kinds by group, version and name. In a schema a word is a kind of value, a list has one schema for its items, and
/// `{}` with the key `*` is a table with free keys.
pub(crate) fn of(api: &str, kind: &str) -> Option<Value> {
    let pod = pod_spec();
    let spec = match (api, kind) {
        ("v1", "Namespace") => json!({}),
        ("v1", "Pod") => json!({"spec!": pod}),
        ("node.k8s.io/v1", "RuntimeClass") => {
            let scheduling = json!({"nodeSelector": {"*": "string"}, "tolerations": [{"*": "string"}]});
            json!({"handler!": "name", "scheduling": scheduling})
        }
        ("apps/v1", "DaemonSet") => json!({"spec!": {
            "selector!": {"matchLabels": {"*": "string"}},
            "updateStrategy": {"type": "RollingUpdate|OnDelete", "rollingUpdate": {"maxUnavailable": "number"}},
            "template!": {"metadata!": metadata(), "spec!": pod},
        }}),
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy") => json!({"spec!": {
            "failurePolicy": "Fail|Ignore",
            "matchConstraints!": {"resourceRules": [{
                "apiGroups!": ["string"], "apiVersions!": ["string"], "resources!": ["string"],
                "operations!": ["CREATE|UPDATE|DELETE|CONNECT|*"],
            }]},
            "variables": [{"name!": "string", "expression!": "string"}],
            "validations!": [{
                "expression!": "string", "message": "string",
                "reason": "Unauthorized|Forbidden|Invalid|RequestEntityTooLarge",
            }],
        }}),
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding") => json!({"spec!": {
            "policyName!": "name",
            "validationActions!": ["Deny|Warn|Audit"],
            "matchResources": {"namespaceSelector": {"matchLabels": {"*": "string"}}},
        }}),
        _ => return None,
    };
    let mut whole = json!({"apiVersion!": "string", "kind!": "string", "metadata!": metadata()});
    spec.as_object()?.iter().for_each(|(key, value)| whole[key] = value.clone());
    Some(whole)
}

fn metadata() -> Value {
    json!({"name": "name", "namespace": "name", "labels": {"*": "string"}, "annotations": {"*": "string"}})
}

fn pod_spec() -> Value {
    let profile = json!({"type!": "RuntimeDefault|Localhost|Unconfined", "localhostProfile": "string"});
    let container = json!({
        "name!": "name", "image!": "string", "command": ["string"], "args": ["string"],
        "resources": {"requests": {"*": "string"}, "limits": {"*": "string"}},
        "securityContext": {
            "runAsUser": "number", "runAsNonRoot": "flag", "privileged": "flag", "allowPrivilegeEscalation": "flag",
            "readOnlyRootFilesystem": "flag", "capabilities": {"add": ["string"], "drop": ["string"]},
            "seccompProfile": profile,
        },
        "volumeMounts": [{
            "name!": "name", "mountPath!": "string", "readOnly": "flag",
            "mountPropagation": "None|HostToContainer|Bidirectional",
        }],
    });
    json!({
        "runtimeClassName": "name", "restartPolicy": "Always|OnFailure|Never", "priorityClassName": "name",
        "automountServiceAccountToken": "flag", "hostPID": "flag", "nodeSelector": {"*": "string"},
        "tolerations": [{"key": "string", "operator": "Exists|Equal", "effect": "string"}],
        "initContainers": [container], "containers!": [container],
        "volumes": [{"name!": "name", "hostPath": {
            "path!": "string", "type": "|Directory|DirectoryOrCreate|File|FileOrCreate|Socket|CharDevice|BlockDevice",
        }}],
    })
}

/// Everything of a document that its schema does not have, by place.
pub(crate) fn faults(schema: &Value, value: &Value, place: &str) -> Vec<String> {
    let fault = |what: &str| vec![format!("{place}: {what}: {value}")];
    match (schema, value) {
        (Value::Object(fields), Value::Object(given)) => {
            let mut list = Vec::new();
            for (key, inner) in given {
                let known = fields.get(key).or_else(|| fields.get(&format!("{key}!"))).or_else(|| fields.get("*"));
                match known {
                    Some(schema) => list.extend(faults(schema, inner, &format!("{place}/{key}"))),
                    None => list.push(format!("{place}: there is no field {key}")),
                }
            }
            let needed = fields.keys().filter_map(|key| key.strip_suffix('!')).filter(|key| !given.contains_key(*key));
            list.extend(needed.map(|key| format!("{place}: {key} is needed")));
            list
        }
        (Value::Array(items), Value::Array(given)) => {
            let each = given.iter().enumerate();
            each.flat_map(|(at, inner)| faults(&items[0], inner, &format!("{place}/{at}"))).collect()
        }
        (Value::String(kind), given) => match (kind.as_str(), given) {
            ("string", Value::String(_)) | ("flag", Value::Bool(_)) | ("number", Value::Number(_)) => Vec::new(),
            ("name", Value::String(name)) if is_name(name) => Vec::new(),
            (words, Value::String(word)) if words.contains('|') && words.split('|').any(|one| one == word) => {
                Vec::new()
            }
            _ => fault(&format!("no {kind}")),
        },
        _ => fault("another shape"),
    }
}

/// A DNS label, as names of objects and containers are.
fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !name.is_empty() && name.len() <= 63 && name.bytes().all(fits) && !name.starts_with('-') && !name.ends_with('-')
}
