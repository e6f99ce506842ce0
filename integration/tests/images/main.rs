//! The driver's libraries load in every kind of image, from every layout of the node, with nothing of the image executed:
//! D02 (no cache), D07 (musl), D08 (read-only root), D09 (an image that brings driver files), D11 (compatibility libraries).
//!
//! `matrix.txt` says what there is; a cell that cannot be tried on this machine fails.

mod apt;
mod cdi;
mod crafted;
mod made;
mod matrix;
mod traces;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use integration::{Bundle, DriverFiles, Error, Layout, QuiltOptions, Result, Runc, Site, Spec, must, root_for, say};

use made::{Image, Programs};
use matrix::{Matrix, Row};

/// Names that programs load, by what brings them: SONAMEs, then plain names.
const ALWAYS: &[&str] =
    &["libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1", "libcuda.so", "libnvidia-ml.so"];
const MORE: &[&str] =
    &["libnvcuvid.so.1", "libnvidia-encode.so.1", "libEGL_nvidia.so.0", "libGLX_nvidia.so.0", "libnvidia-encode.so"];
/// Between the parts of what a container says.
const MARK: &str = "== next";

/// A node on which all containers of a layout and set of capabilities are made.
struct Node {
    runc: Runc,
    site: Site,
    names: Vec<&'static str>,
}

impl Node {
    fn new(layout: Layout, capabilities: &str, files: Option<&DriverFiles>) -> Result<Self> {
        let change = |host: integration::Builder| {
            let host = host.layout(layout);
            files.into_iter().fold(host, integration::Builder::driver)
        };
        let site = Site::with(change, &QuiltOptions::default())?;
        let config = site.quilt.config();
        let text = fs::read_to_string(&config).map_err(|e| Error::new(e.to_string()))?;
        let text = text.replace("[policy]\n", &format!("[policy]\ncapabilities = \"{capabilities}\"\n"));
        fs::write(&config, text).map_err(|e| Error::new(e.to_string()))?;
        let more = if capabilities.contains("video") { MORE } else { &[] };
        Ok(Self { runc: site.quilt.runc(site.join("runc"))?, site, names: [ALWAYS, more].concat() })
    }

    /// The node's file of a name.
    fn file(&self, layout: Layout, name: &str) -> PathBuf {
        self.site.host.root.join(layout.library_folder()).join(name)
    }
}

#[test]
fn libraries_load_in_every_image() -> Result<()> {
    let matrix = Matrix::read(include_str!("matrix.txt"));
    for (image, why) in &matrix.gaps {
        say(format_args!("not shown: {image}: {why}"));
    }
    rows("libraries_load_in_every_image", "plain")
}

#[test]
fn d02_an_image_without_a_cache_is_no_error() -> Result<()> {
    rows("d02_an_image_without_a_cache_is_no_error", "D02")
}

#[test]
fn d07_libraries_lie_where_musl_looks() -> Result<()> {
    rows("d07_libraries_lie_where_musl_looks", "D07")
}

#[test]
fn d08_a_read_only_root_is_served() -> Result<()> {
    rows("d08_a_read_only_root_is_served", "D08")
}

#[test]
fn d09_the_nodes_driver_wins_over_the_images() -> Result<()> {
    rows("d09_the_nodes_driver_wins_over_the_images", "D09")
}

#[test]
fn d11_compatibility_libraries_lie_beside() -> Result<()> {
    rows("d11_compatibility_libraries_lie_beside", "D11")
}

/// D09: the record says what the image brought, and `audit ID` says it again.
#[test]
fn d09_what_an_image_carries_is_in_the_record() -> Result<()> {
    if !root_for("d09_what_an_image_carries_is_in_the_record") {
        return Ok(());
    }
    let workshop = integration::Scratch::new()?;
    let programs = Programs::make(workshop.path())?;
    let node = Node::new(Layout::Debian, "compute,utility", None)?;
    for (at, (name, carries)) in [
        ("debian", None),
        ("older driver", Some("525.105.17, in /lib/x86_64-linux-gnu")),
        ("newer driver, found first", Some("570.148.08, in /usr/local/nvidia/lib64")),
        ("empty driver files", Some("450.80.02, in /usr/lib/x86_64-linux-gnu")),
        // Its own rules decide, and its own note tells.
        ("compatibility libraries", None),
        ("musl", None),
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("carries-{at}");
        let image = Image::make(name, workshop.join(&id), &programs)?;
        let spec = Spec::new().env("QUILT_GPU_COUNT", "1").args(["true"]);
        node.runc.whole_life(&id, &Bundle::new(node.site.join(&id), &spec, &image.rootfs)?)?;
        let told = node.site.quilt.cli(&["audit", &id])?.checked()?.stdout;
        let line = told.lines().find(|line| line.trim_start().starts_with("note image-driver "));
        let expected =
            carries.map(|carries| format!("the image carries driver libraries {carries}: the node's are used"));
        let right = match (line, &expected) {
            (Some(line), Some(expected)) => line.contains(expected),
            (line, expected) => line.is_none() && expected.is_none(),
        };
        must(right, format_args!("{name}: {told}"))?;
    }
    Ok(())
}

/// Every row of one case.
fn rows(test: &str, case: &str) -> Result<()> {
    if !root_for(test) {
        return Ok(());
    }
    let matrix = Matrix::read(include_str!("matrix.txt"));
    let workshop = integration::Scratch::new()?;
    let programs = Programs::make(workshop.path())?;
    let stand_ins = DriverFiles::stand_in("535.309.01")?;
    let images: Vec<(&Row, Image)> = (matrix.rows.iter().filter(|row| row.case == case).enumerate())
        .map(|(at, row)| Ok((row, Image::make(&row.image, workshop.join(format!("image-{at}")), &programs)?)))
        .collect::<Result<_>>()?;
    let mut wrong = Vec::new();
    let mut tried = 0;
    for layout in &matrix.layouts {
        for capabilities in &matrix.capabilities {
            let node = Node::new(*layout, capabilities, None)?;
            let bare = Node::new(*layout, capabilities, Some(&stand_ins))?;
            for (at, (row, image)) in images.iter().enumerate() {
                let node = if image.bare { &bare } else { &node };
                tried += 1;
                if let Err(why) = cell(node, *layout, capabilities, row, image, &format!("image-{at}")) {
                    wrong.push(format!("{} on {layout:?}, {capabilities}: {why}", row.image));
                }
            }
        }
    }
    say(format_args!("images, {case}: {tried} of {} cells tried, {} not as they should be", matrix.cells, wrong.len()));
    must(wrong.is_empty(), wrong.join("\n"))
}

/// One container's life, and what it said.
fn cell(node: &Node, layout: Layout, capabilities: &str, row: &Row, image: &Image, id: &str) -> Result<()> {
    let home = node.site.join(format!("bundle-{id}"));
    let group = node.site.folder().file_name().unwrap_or_default().to_string_lossy().into_owned();
    let spec = Spec::new()
        .env("QUILT_GPU_COUNT", "1")
        .env("QUILT_GPU_CAPABILITIES", capabilities)
        .cgroup(&format!("/{group}-{id}"))
        .args(command(row, image, &node.names));
    let bundle = Bundle::new(home, &image.spec(spec), &image.rootfs)?;
    let frozen = image.ready(&bundle)?;
    let said = node.runc.whole_life(id, &bundle)?;
    drop(frozen);
    let errors = fs::read_to_string(bundle.path.join("stderr")).unwrap_or_default();
    must(errors.is_empty(), format_args!("errors were written: {errors}"))?;
    let parts: Vec<&str> = said.split(&format!("{MARK}\n")).collect();
    for (word, part) in row.words.iter().filter(|word| *word != "starts").zip(&parts) {
        match word.as_str() {
            "loads" => loads(node, layout, part)?,
            "lists" => lists(node, part)?,
            // What it said itself, then the same again.
            _ => {
                // Of a leftover of the image's own ldconfig complains whoever started the container.
                let quiet = match word.as_str() {
                    "installs" => apt::is_quiet(part),
                    _ => part.lines().all(|line| line.contains(made::LEFTOVER)),
                };
                must(quiet, format_args!("{word}: it said {part:?}"))?;
                let again = parts.get(parts.len() - 2..).unwrap_or_default();
                let [loaded, listed] = again else { return Err(Error::new(format!("cut off: {said}"))) };
                loads(node, layout, loaded).map_err(|e| Error::new(format!("{word}, afterwards: {e}")))?;
                lists(node, listed).map_err(|e| Error::new(format!("{word}, afterwards: {e}")))?;
                let library = format!("/{}", apt::LIBRARY);
                let installed = word != "installs" || loaded.contains(&library) && listed.contains(&library);
                must(installed, format_args!("what was installed is not found: {loaded} {listed}"))?;
            }
        }
    }
    Ok(())
}

/// What runs in the container: one part for each word that asks for something.
fn command(row: &Row, image: &Image, names: &[&str]) -> Vec<String> {
    let load = format!("quilt-probe {}", names.join(" "));
    if !row.asks("loads") {
        return vec!["true".to_owned()];
    }
    if !image.shell {
        return load.split(' ').map(str::to_owned).collect();
    }
    let step = |word: &String| match word.as_str() {
        "loads" => Some(load.clone()),
        "lists" => Some("ldconfig -p".to_owned()),
        "keeps" => Some(format!("ldconfig 2>&1; echo '{MARK}'; {load}; echo '{MARK}'; ldconfig -p")),
        "installs" => {
            let (install, library) = (apt::INSTALL, apt::LIBRARY);
            Some(format!("{{ {install}; }} 2>&1; echo '{MARK}'; {load} {library}; echo '{MARK}'; ldconfig -p"))
        }
        _ => None,
    };
    let steps: Vec<String> = row.words.iter().filter_map(step).collect();
    vec!["sh".to_owned(), "-c".to_owned(), steps.join(&format!("; echo '{MARK}'; "))]
}

/// The loader took the node's file for every name.
fn loads(node: &Node, layout: Layout, said: &str) -> Result<()> {
    // ADDRESS RIGHTS OFFSET MAJOR:MINOR INODE PATH
    let mapped: Vec<(u64, &str)> = (said.lines())
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            Some((words.get(4)?.parse().ok()?, words.get(5)?.rsplit('/').next()?))
        })
        .collect();
    for name in &node.names {
        let line = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let path = line.ok_or_else(|| Error::new(format!("nothing was said of {name}: {said:?}")))?;
        let file = inode(&node.file(layout, name))?;
        // Under whatever name: the image's own may be a link, at whose end the node's file is.
        let stem = name.split_inclusive(".so").next().unwrap_or_default();
        let found: Vec<u64> = mapped.iter().filter(|(_, at)| at.starts_with(stem)).map(|(inode, _)| *inode).collect();
        let is_nodes = !found.is_empty() && found.iter().all(|inode| *inode == file);
        must(is_nodes, format_args!("{name} is not the node's file: {path}"))?;
    }
    Ok(())
}

/// `ldconfig -p` has every SONAME, at a place that is there.
fn lists(node: &Node, said: &str) -> Result<()> {
    for name in node.names.iter().filter(|name| !name.ends_with(".so")) {
        let first = said.lines().find(|line| line.trim_start().starts_with(&format!("{name} (libc6")));
        must(first.is_some(), format_args!("ldconfig -p does not name {name}"))?;
    }
    Ok(())
}

fn inode(path: &Path) -> Result<u64> {
    fs::metadata(path).map(|facts| facts.ino()).map_err(|e| Error::new(format!("{}: {e}", path.display())))
}

/// D11: an image's own driver libraries are used where they are newer and the GPU is one that takes them, never else.
#[test]
fn d11_compatibility_libraries_are_used_by_nvidias_own_rules() -> Result<()> {
    if !root_for("d11_compatibility_libraries_are_used_by_nvidias_own_rules") {
        return Ok(());
    }
    let workshop = integration::Scratch::new()?;
    let programs = Programs::make(workshop.path())?;
    for (id, model, brought, images) in [
        ("newer", "NVIDIA A100-SXM4-40GB", "570.148.08", true),
        ("at-home", "NVIDIA GeForce RTX 4090", "570.148.08", false),
        ("older", "NVIDIA A100-SXM4-40GB", "525.105.17", false),
    ] {
        let node = Node::new(Layout::Debian, "compute,utility", None)?;
        for gpu in &node.site.host.gpus {
            let file = node.site.host.root.join("proc/driver/nvidia/gpus").join(&gpu.pci).join("information");
            let text = fs::read_to_string(&file).map_err(|e| Error::new(e.to_string()))?;
            must(text.contains("NVIDIA A100-SXM4-40GB"), &text)?;
            fs::write(&file, text.replace("NVIDIA A100-SXM4-40GB", model)).map_err(|e| Error::new(e.to_string()))?;
        }
        let image = Image::with_compatibility(workshop.join(id), &programs, brought)?;
        let spec = Spec::new().env("QUILT_GPU_COUNT", "1").env("LD_LIBRARY_PATH", "/opt/lib").args([
            "sh",
            "-c",
            "quilt-probe libcuda.so.1 libcuda.so libnvidia-ml.so.1; echo $LD_LIBRARY_PATH",
        ]);
        let said = node.runc.whole_life(id, &Bundle::new(node.site.join(id), &spec, &image.rootfs)?)?;
        let compat = "/usr/local/cuda/compat";
        let path = if images { format!("{compat}:/opt/lib") } else { "/opt/lib".to_owned() };
        must(said.ends_with(&format!("{path}\n")), format_args!("{id}: {said}"))?;
        for name in ["libcuda.so.1", "libcuda.so"] {
            let line = said.lines().find_map(|line| line.strip_prefix(&format!("{name} "))).unwrap_or_default();
            must(line.starts_with(compat) == images && line.starts_with('/'), format_args!("{id}: {name} {line}"))?;
        }
        must(!said.contains(&format!("libnvidia-ml.so.1 {compat}")), format_args!("{id}: {said}"))?;
        let notes = node.site.quilt.audit().iter().map(|entry| entry["notes"].to_string()).collect::<String>();
        must(notes.contains("cuda-compat") == (brought > "535"), format_args!("{id}: {notes}"))?;
    }
    Ok(())
}
