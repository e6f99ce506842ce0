//! The same images below a bare runc with what the node's CDI file edits, as engines apply it: what its binds alone reach, and
//! what `cdi generate --hooks` adds.

use std::path::Path;

use cdi::spec::{Cache, Found};
use integration::{Bundle, Error, Layout, Result, Runc, Spec, must, root_for};
use serde_json::Value;

use crate::made::{Image, Programs};
use crate::matrix::Row;
use crate::{Node, command, lists, loads};

const RUNC: &str = "/usr/sbin/runc";
/// Image, what holds in it without hooks, and what with them.
const ROWS: [(&str, &str, &str); 8] = [
    ("debian", "loads", "loads lists keeps"),
    ("debian, no cache", "loads", "loads"),
    ("lib64", "loads", "loads lists keeps"),
    ("distroless", "loads", "loads"),
    ("musl", "", "loads"),
    ("musl, search path of its own", "", "loads"),
    // Its cache leads to files of its own; a later ldconfig finds them again.
    ("newer driver, found first", "lists", "loads lists"),
    // runc makes it read-only after its hooks.
    ("read-only", "loads", "loads lists"),
];

/// The spec as an engine leaves it that was told one device of this file.
fn injected(file: &str, spec: &Spec) -> Result<Spec> {
    let odd = |why: &dyn std::fmt::Debug| Error::new(format!("cannot put the device in: {why:?}"));
    let bytes = Ok(file.as_bytes().to_vec());
    let cache = Cache::of([Found { path: "/run/cdi/quilt-gpu.json".into(), priority: 0, bytes }]);
    let injection = cache.resolve(&["quilt.gpu/device=nvidia0".to_owned()]).map_err(|why| odd(&why))?;
    let text = spec.json().to_string();
    let document = contract::json::parse_oci(text.as_bytes()).map_err(|why| odd(&why))?;
    let with = cdi::spec::apply(text.as_bytes(), &document, &injection).map_err(|why| odd(&why))?;
    let with: Value = serde_json::from_slice(&with).map_err(|why| odd(&why))?;
    Ok(Spec::new().edit(|spec| *spec = with))
}

#[test]
fn libraries_load_by_a_cdi_file_alone() -> Result<()> {
    if !root_for("libraries_load_by_a_cdi_file_alone") {
        return Ok(());
    }
    let workshop = integration::Scratch::new()?;
    let programs = Programs::make(workshop.path())?;
    let stand_ins = integration::DriverFiles::stand_in("535.309.01")?;
    let node = Node::new(Layout::Debian, "compute,utility", None)?;
    let bare = Node::new(Layout::Debian, "compute,utility", Some(&stand_ins))?;
    let runc = Runc::new(RUNC, workshop.join("runc"))?;
    let mut wrong = Vec::new();
    for (at, (name, without, with)) in ROWS.into_iter().enumerate() {
        let image = Image::make(name, workshop.join(format!("image-{at}")), &programs)?;
        for (hooks, expected) in [(false, without), (true, with)] {
            let node = if image.bare { &bare } else { &node };
            let id = format!("cdi-{at}-{hooks}");
            let held = holds(node, &runc, &image, &workshop.join(&id), &id, hooks)?;
            if held != expected {
                wrong.push(format!("{name}, hooks {hooks}: {held:?} holds, not {expected:?}"));
            }
        }
    }
    must(wrong.is_empty(), wrong.join("\n"))
}

/// The words that are true of a container of this image.
fn holds(node: &Node, runc: &Runc, image: &Image, home: &Path, id: &str, hooks: bool) -> Result<String> {
    let mut words = vec!["cdi", "generate"];
    words.extend(hooks.then_some("--hooks"));
    let file = node.site.quilt.cli(&words)?.checked()?.stdout;
    let row =
        Row { case: String::new(), image: String::new(), words: ["loads", "lists", "keeps"].map(str::to_owned).into() };
    let group = node.site.folder().file_name().unwrap_or_default().to_string_lossy().into_owned();
    let spec = Spec::new().cgroup(&format!("/{group}-{id}")).args(command(&row, image, &node.names));
    let bundle = Bundle::new(home, &injected(&file, &image.spec(spec))?, &image.rootfs)?;
    let frozen = image.ready(&bundle)?;
    let said = runc.whole_life(id, &bundle)?;
    drop(frozen);
    let mark = format!("{}\n", crate::MARK);
    let mut parts = said.split(&mark);
    let mut part = || parts.next().unwrap_or_default();
    let load = |part: &str| loads(node, Layout::Debian, part).is_ok();
    let list = |part: &str| lists(node, part).is_ok();
    let (loads, lists) = (load(part()), list(part()));
    // What ldconfig said, then both once more.
    let keeps = part().is_empty() && load(part()) && list(part());
    let true_words = [(loads, "loads"), (lists, "lists"), (keeps && lists, "keeps")];
    Ok(true_words.into_iter().filter_map(|(holds, word)| holds.then_some(word)).collect::<Vec<_>>().join(" "))
}
