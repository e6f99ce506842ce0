//! Our own documents and the configuration, read strictly into types: a field that is missing, unknown or of another
//! shape is an error that names its place.
//!
//! A reader of its own instead of derived ones, because it is linked into the runtime: derived readers are a quarter of
//! its size. What is written is written by serde; tests read everything back.

use crate::json::{self, Node, Value};

/// What was wrong with a document, and where. A box, since every reader of every field hands it on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadError(Box<Wrong>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Wrong {
    /// JSON pointer; built from the inside out.
    at: String,
    message: String,
}

impl ReadError {
    /// Something is wrong with the value that is being read.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self::of(message.into())
    }

    #[cold]
    #[inline(never)]
    fn of(message: String) -> Self {
        Self(Box::new(Wrong { at: String::new(), message }))
    }

    /// The same, seen from the value that holds the wrong one under this key.
    #[cold]
    #[inline(never)]
    #[must_use]
    pub fn inside(mut self, step: &str) -> Self {
        self.0.at = format!("/{}{}", json::pointer_token(step), self.0.at);
        self
    }

    #[cold]
    #[inline(never)]
    fn missing(key: &str) -> Self {
        Self::of("it is missing".to_owned()).inside(key)
    }

    #[cold]
    #[inline(never)]
    fn at_index(self, index: usize) -> Self {
        self.inside(&index.to_string())
    }

    /// Where in the document's bytes it is: at what is wrong, or at what lacks it.
    pub(crate) fn place(&self, document: &Node<'_>) -> usize {
        let (mut at, mut node) = (document.span.start, document);
        for step in self.0.at.split('/').skip(1) {
            let item = step.parse().ok().and_then(|index: usize| node.items().get(index));
            let Some(found) = item.or_else(|| node.get(&json::pointed_key(step))) else { break };
            (at, node) = (found.span.start, found);
        }
        at
    }

    /// JSON pointer of the place; empty at the top.
    #[must_use]
    pub fn at(&self) -> &str {
        &self.0.at
    }

    /// What is wrong there.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }
}

impl std::fmt::Display for ReadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Wrong { at, message } = &*self.0;
        if at.is_empty() { f.write_str(message) } else { write!(f, "{at}: {message}") }
    }
}

impl std::error::Error for ReadError {}

/// A type that a document holds.
pub trait FromJson: Sized {
    /// Reads a value.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError>;

    /// What an absent field means; nothing when it must be there.
    #[must_use]
    fn absent() -> Option<Self> {
        None
    }
}

/// Reads a whole document.
///
/// # Errors
/// It is not one strict JSON value, or not of this type.
pub fn document<T: FromJson>(bytes: &[u8]) -> Result<T, ReadError> {
    let node = json::parse_data(bytes).map_err(|error| ReadError::new(error.to_string()))?;
    T::from_json(&node)
}

/// Reads a whole document with one long list, and apart from it, item by item, what is in the list under this key.
///
/// # Errors
/// As [`document`].
pub fn document_and_list<T: FromJson, I: FromJson>(bytes: &[u8], key: &str) -> Result<(T, Vec<I>), ReadError> {
    let (mut list, mut wrong) = (Vec::new(), None);
    let mut take = |node: Node<'_>| match I::from_json(&node) {
        _ if wrong.is_some() => {}
        Ok(item) => list.push(item),
        Err(error) => wrong = Some(error.at_index(list.len()).inside(key)),
    };
    let node = json::parse_taking(bytes, key, &mut take).map_err(|error| ReadError::new(error.to_string()))?;
    let document = T::from_json(&node)?;
    wrong.map_or(Ok((document, list)), Err)
}

/// Reads a field of an object.
///
/// # Errors
/// It is missing, or not of this type.
pub fn field<T: FromJson>(node: &Node<'_>, key: &str) -> Result<T, ReadError> {
    value(node.get(key), key)
}

/// Reads the field that most likely stands at this place: who writes our documents writes fields in the order of their types.
///
/// # Errors
/// As [`field`].
pub fn next<T: FromJson>(node: &Node<'_>, at: &mut usize, key: &str) -> Result<T, ReadError> {
    match node.members().get(*at) {
        Some(member) if member.key == key => {
            *at += 1;
            value(Some(&member.value).filter(|it| !it.is_null()), key)
        }
        _ => field(node, key),
    }
}

/// Reads the item at this place of a list that has one for each field of a type.
///
/// # Errors
/// As [`field`].
pub fn item<T: FromJson>(items: &[Node<'_>], at: &mut usize, key: &str) -> Result<T, ReadError> {
    let item = items.get(*at).filter(|it| !it.is_null());
    *at += 1;
    value(item, key)
}

fn value<T: FromJson>(node: Option<&Node<'_>>, key: &str) -> Result<T, ReadError> {
    match node {
        Some(value) => T::from_json(value).map_err(|error| error.inside(key)),
        None => T::absent().ok_or_else(|| ReadError::missing(key)),
    }
}

/// Refuses what is no object, and fields that are not among `known`.
///
/// # Errors
/// Names the first unknown field.
pub fn only(node: &Node<'_>, known: &[&str]) -> Result<(), ReadError> {
    if !matches!(node.value, Value::Object(_)) {
        return Err(ReadError::new("it must be a table of fields"));
    }
    // Most stand where their type has them.
    let unknown = |(at, member): &(usize, &json::Member<'_>)| {
        let key = member.key.as_ref();
        known.get(*at) != Some(&key) && !known.contains(&key)
    };
    match node.members().iter().enumerate().find(unknown) {
        Some((_, member)) => {
            Err(ReadError::new(format!("unknown field; known are {}", known.join(", "))).inside(&member.key))
        }
        None => Ok(()),
    }
}

/// Makes a struct readable: every field stands in the document, and no other does. After `open`, other fields may
/// stand there too: they are a newer version's. After `row`, the document may have a list of the values alone.
#[macro_export]
macro_rules! record {
    (open $type:ident { $($field:ident),* $(,)? }) => {
        impl $crate::read::FromJson for $type {
            fn from_json(node: &$crate::json::Node<'_>) -> Result<Self, $crate::read::ReadError> {
                let mut at = 0;
                Ok(Self { $($field: $crate::read::next(node, &mut at, stringify!($field))?),* })
            }
        }
    };
    (row $type:ident { $($field:ident),* $(,)? }) => {
        impl $crate::read::FromJson for $type {
            fn from_json(node: &$crate::json::Node<'_>) -> Result<Self, $crate::read::ReadError> {
                let (known, items, mut at) = ([$(stringify!($field)),*], node.items(), 0);
                if items.len() == known.len() {
                    return Ok(Self { $($field: $crate::read::item(items, &mut at, stringify!($field))?),* });
                }
                $crate::read::only(node, &known)?;
                Ok(Self { $($field: $crate::read::next(node, &mut at, stringify!($field))?),* })
            }
        }
    };
    ($type:ident { $($field:ident),* $(,)? }) => {
        impl $crate::read::FromJson for $type {
            fn from_json(node: &$crate::json::Node<'_>) -> Result<Self, $crate::read::ReadError> {
                $crate::read::only(node, &[$(stringify!($field)),*])?;
                let mut at = 0;
                Ok(Self { $($field: $crate::read::next(node, &mut at, stringify!($field))?),* })
            }
        }
    };
}

/// What a document sets, key by key: what is wrong in it keeps nothing else from counting.
pub trait Settings {
    /// Takes over what a value says. Keeps the rest as it is, and the first thing that is wrong in `wrong`.
    fn take(&mut self, node: &Node<'_>, wrong: &mut Option<ReadError>);
}

/// Takes over the value of one key, where there is one.
pub fn setting(
    node: &Node<'_>,
    key: &str,
    wrong: &mut Option<ReadError>,
    take: impl FnOnce(&Node<'_>, &mut Option<ReadError>),
) {
    let mut own = None;
    if let Some(value) = node.get(key) {
        take(value, &mut own);
    }
    if let Some(own) = own {
        wrong.get_or_insert(own.inside(key));
    }
}

/// Makes a struct with defaults take what a document sets. After `tables`, each field is such a struct itself.
#[macro_export]
macro_rules! settings {
    (@each $type:ident { $($field:ident),* } $take:expr) => {
        impl $crate::read::Settings for $type {
            fn take(&mut self, node: &$crate::json::Node<'_>, wrong: &mut Option<$crate::read::ReadError>) {
                if let Err(unknown) = $crate::read::only(node, &[$(stringify!($field)),*]) {
                    wrong.get_or_insert(unknown);
                }
                $($crate::read::setting(node, stringify!($field), wrong, |value, wrong| $take(&mut self.$field, value, wrong));)*
            }
        }
    };
    (tables $type:ident { $($field:ident),* $(,)? }) => {
        $crate::settings!(@each $type { $($field),* } $crate::read::Settings::take);
    };
    ($type:ident { $($field:ident),* $(,)? }) => {
        $crate::settings!(@each $type { $($field),* } $crate::read::replace);
    };
}

/// Replaces a value by what a document says, if that can be read.
pub fn replace<T: FromJson>(out: &mut T, node: &Node<'_>, wrong: &mut Option<ReadError>) {
    match T::from_json(node) {
        Ok(value) => *out = value,
        Err(error) => {
            wrong.get_or_insert(error);
        }
    }
}

/// Makes an enum of words readable.
#[macro_export]
macro_rules! word {
    ($type:ident { $($variant:ident = $word:literal),* $(,)? }) => {
        impl $crate::read::FromJson for $type {
            fn from_json(node: &$crate::json::Node<'_>) -> Result<Self, $crate::read::ReadError> {
                match node.as_str() {
                    $(Some($word) => Ok(Self::$variant),)*
                    _ => Err($crate::read::ReadError::new(concat!("it must be one of", $(" ", $word),*))),
                }
            }
        }
    };
}

impl FromJson for String {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        node.as_str().map(str::to_owned).ok_or_else(|| ReadError::new("it must be a string"))
    }
}

impl FromJson for bool {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        node.as_bool().ok_or_else(|| ReadError::new("it must be true or false"))
    }
}

macro_rules! number {
    ($($type:ident)*) => {
        $(impl FromJson for $type {
            fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
                match node.value {
                    Value::Number(text) => text.parse().ok(),
                    _ => None,
                }
                .ok_or_else(|| ReadError::new("it must be a whole number in range"))
            }
        })*
    };
}
number!(u8 u32 u64 i32 i64);

impl<T: FromJson> FromJson for Option<T> {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        T::from_json(node).map(Some)
    }

    fn absent() -> Option<Self> {
        Some(None)
    }
}

impl<T: FromJson> FromJson for Vec<T> {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        let Value::Array(items) = &node.value else { return Err(ReadError::new("it must be a list")) };
        // A loop: what collects results is made twice as large for every type.
        let mut list = Self::new();
        for (index, item) in items.iter().enumerate() {
            list.push(T::from_json(item).map_err(|error| error.at_index(index))?);
        }
        Ok(list)
    }
}

impl<A: FromJson, B: FromJson> FromJson for (A, B) {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        match node.items() {
            [a, b] => Ok((A::from_json(a)?, B::from_json(b)?)),
            _ => Err(ReadError::new("it must be a list of two")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capability::{Capabilities, Capability};
    use crate::gpu::{Gpu, Link, LinkKind, MigMode, Partition, State, Unavailable};
    use crate::inventory::{
        DeviceNode, DriverFile, DriverGpu, Facts, FileId, FileKind, Filter, Finding, Instances, Inventory, Library,
        LowLevel, Marks, Role,
    };
    use crate::request::{Fallback, Places, Request, Sharing, Source, Terms};
    use crate::{Contract, Granted};

    fn inventory() -> Inventory {
        let node = DeviceNode {
            path: "/dev/nvidia0".into(),
            host_path: "/dev/nvidia0".into(),
            major: 195,
            minor: 0,
            mode: 0o666,
            uid: 0,
            gid: 27,
            role: Role::Compute,
        };
        let id = FileId { dev: u64::MAX, ino: 1, size: 2, ctime: -1, ctime_nsec: 3 };
        let facts = Facts {
            boot_id: "b".into(),
            driver_version: Some("535.1".into()),
            majors: vec![("nvidia".into(), 195)],
            driver_gpus: vec![DriverGpu { pci: "0000:01:00.0".into(), uuid: None, minor: Some(0) }],
            instances: Instances(vec!["gpu0/gi7/ci0".into()]),
            marks: Marks(vec!["1.2.3".into()]),
        };
        let gpu = Gpu {
            vendor: "nvidia".into(),
            pci: "0000:01:00.0".into(),
            index: Some(0),
            uuid: None,
            minor: Some(0),
            model: Some("\"\\\u{7f}".into()),
            device_id: "0x20b0".into(),
            driver: None,
            numa: Some(-1),
            nodes: vec![node.clone()],
            unavailable: Some(Unavailable::new(State::MigEmpty, "m")),
            memory_mb: Some(40960),
            compute_capability: Some("8.0".into()),
            virtualization: Some("none".into()),
            iommu_group: Some(7),
            mig: Some(MigMode { enabled: true, pending: false }),
            partitions: vec![Partition {
                kind: "mig".into(),
                index: 0,
                gi: 7,
                ci: 0,
                profile: "1g.5gb".into(),
                uuid: Some("MIG-1".into()),
                memory_mb: None,
                nodes: vec![node.clone()].into(),
                unavailable: None,
            }],
            sources: vec![("model".into(), "nvml".into())],
        };
        let library = Library {
            host_path: "/x".into(),
            soname: "libcuda.so.1".into(),
            bits: 64,
            capabilities: vec![Capability::Compute],
            id,
            found_by: "folder".into(),
        };
        let file = DriverFile {
            host_path: "/y".into(),
            path: "/usr/bin/nvidia-smi".into(),
            kind: FileKind::Program,
            capabilities: vec![],
            id,
            found_by: "/usr/bin".into(),
        };
        let finding = Finding { code: "c".into(), stops: true, message: "m".into() };
        Inventory {
            schema: crate::inventory::SCHEMA,
            facts,
            gpus: vec![gpu],
            control: vec![node],
            libraries: vec![library],
            files: vec![file],
            findings: vec![finding],
            cuda_version: Some("12.4".into()),
            links: vec![Link { a: "a".into(), b: "b".into(), kind: LinkKind::Nvlink, lanes: 12 }],
            former: Some(vec![("GPU-0".into(), "0000:01:00.0".into())]),
            low_level: Some(LowLevel {
                path: "/usr/bin/crun".into(),
                id,
                name: "crun".into(),
                version: "1.8.1".into(),
                cgroup: 2,
                filter: Filter::NotEnforced,
                fails_with_list: true,
                reason: Some("no".into()),
            }),
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let inventory = inventory();
        let bytes = serde_json::to_vec(&inventory).unwrap();
        assert_eq!(document::<Inventory>(&bytes).unwrap(), inventory);
        assert_eq!(Inventory::read(&bytes).unwrap(), inventory);
        let odd = String::from_utf8(bytes).unwrap().replacen("\"index\":", "\"other\":", 1);
        assert_eq!(Inventory::read(odd.as_bytes()).unwrap_err().at(), "/gpus/0/other");
        let caps = DeviceNode { role: Role::Caps, ..inventory.control[0].clone() };
        let mut cut = inventory.clone();
        cut.gpus[0].partitions[0].nodes = vec![caps].into();
        let bytes = serde_json::to_vec(&cut.clone().folded()).unwrap();
        let text = String::from_utf8(bytes.clone()).unwrap();
        let row = r#"[["mig",0,7,0,"1g.5gb","MIG-1",null,"195 0 438 0 27 /dev/nvidia0 ",null]]"#;
        assert!(text.contains(&format!("\"partitions\":{row}")), "{text}");
        for (from, to, at) in
            [(",0,7,", ",0,", "/gpus/0/partitions/0"), (",0,7,", ",0,\"7\",", "/gpus/0/partitions/0/gi")]
        {
            let odd = text.replacen(from, to, 1);
            assert_eq!(Inventory::read(odd.as_bytes()).unwrap_err().at(), at);
        }
        assert_eq!((document::<Inventory>(&bytes).unwrap(), Inventory::read(&bytes).unwrap()), (cut.clone(), cut));
        for filter in [Filter::Enforced, Filter::NotEnforced, Filter::NotTried] {
            let low_level = LowLevel { filter, reason: None, ..inventory.low_level.clone().unwrap() };
            assert_eq!(document::<LowLevel>(&serde_json::to_vec(&low_level).unwrap()).unwrap(), low_level);
        }
        let earlier = Inventory { low_level: None, former: None, ..inventory.clone() };
        assert_eq!(document::<Inventory>(&serde_json::to_vec(&earlier).unwrap()).unwrap(), earlier);
        let contract = Contract {
            schema: 1,
            id: "i".into(),
            key: None,
            request: Request {
                source: Source::CommandLine,
                count: 1,
                ids: vec!["nvidia0".into()],
                kind: None,
                profile: None,
                capabilities: Capabilities::default(),
                terms: Terms { sharing: Sharing::Owner, wait: 30, fallback: Fallback::Kind("l4".into()) },
                places: Places::default(),
            },
            gpus: vec![Granted::of_part(&inventory.gpus[0], &inventory.gpus[0].partitions[0])],
            nodes: inventory.control,
            libraries: inventory.libraries,
            files: inventory.files,
            env: vec![("A".into(), "b".into())],
            facts: inventory.facts,
            created: 5,
            products: crate::Products(vec![("NVIDIA L4".into(), "8.9".into())]),
        };
        let bytes = serde_json::to_vec(&contract).unwrap();
        assert_eq!(document::<Contract>(&bytes).unwrap(), contract);
    }

    #[test]
    fn what_is_not_exactly_right_names_its_place() {
        let good = serde_json::to_string(&inventory()).unwrap();
        for (from, to, expected) in [
            ("\"schema\":2", "\"schema\":-1", "/schema: it must be a whole number in range"),
            ("\"schema\":2", "\"schema\":2.0", "/schema: it must be a whole number in range"),
            ("\"schema\":2,", "", "/schema: it is missing"),
            ("\"minor\":0,\"mode\"", "\"mode\"", "/gpus/0/nodes/0/minor: it is missing"),
            ("\"role\":\"compute\"", "\"role\":\"other\"", "/gpus/0/nodes/0/role: it must be one of compute"),
            ("\"bits\":64", "\"bits\":64,\"extra\":1", "/libraries/0/extra: unknown field"),
            ("\"stops\":true", "\"stops\":1", "/findings/0/stops: it must be true or false"),
            ("\"schema\":2", "\"schema\":2,\"schema\":2", "appears twice"),
        ] {
            assert!(good.contains(from), "{from}");
            let error = document::<Inventory>(good.replacen(from, to, 1).as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{to}: {error}");
        }
    }
}
