//! Who else gives out GPUs: the floor program, and NVIDIA's runtime where `PEER` names the folder of a built one. Both get,
//! as a CDI document, the very edits that quilt-gpu made to the same spec.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use integration::Result;
use serde_json::{Value, json};

use crate::scene::{Scene, Verb, failed};

/// The kind and name that the peer knows the device by.
const KIND: &str = "nvidia.com/gpu";

/// The CDI document of what was added to a spec.
#[must_use]
pub fn document(before: &Value, after: &Value, nodes: &Path) -> Value {
    let list = |spec: &Value, at: &str| spec.pointer(at).and_then(Value::as_array).cloned().unwrap_or_default();
    let added = |at: &str| {
        let old = list(before, at);
        list(after, at).into_iter().filter(move |item| !old.contains(item))
    };
    let devices = added("/linux/devices").map(|mut node| {
        let path = node["path"].as_str().unwrap_or_default().trim_start_matches("/dev/").to_owned();
        node["hostPath"] = nodes.join(path).display().to_string().into();
        node
    });
    let mounts = added("/mounts").map(|mount| {
        json!({"hostPath": mount["source"], "containerPath": mount["destination"], "options": mount["options"]})
    });
    let env =
        added("/process/env").filter(|variable| variable.as_str().is_some_and(|text| !text.starts_with("NVIDIA_")));
    json!({
        "cdiVersion": "0.5.0",
        "kind": KIND,
        "devices": [{"name": "0", "containerEdits": {"deviceNodes": devices.collect::<Vec<_>>()}}],
        "containerEdits": {"mounts": mounts.collect::<Vec<_>>(), "env": env.collect::<Vec<_>>()},
    })
}

/// Writes a JSON file, with its folders.
///
/// # Errors
/// It cannot be written.
pub fn write(path: &Path, document: &Value) -> Result<()> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).map_err(|e| failed("create", folder, &e))?;
    fs::write(path, document.to_string()).map_err(|e| failed("write", path, &e))
}

/// The floor, linked with glibc, as it was when the budgets were set.
pub const FLOOR: &str = "quilt-floor";
/// The same program, linked as the runtime is.
pub const FLOOR_ALIKE: &str = "quilt-floor-linked-alike";

/// A floor program, which lies beside the runtime.
#[must_use]
pub fn floor(program: &str, scene: &Scene<'_>, verb: Verb, document: &Path) -> Command {
    let mut command = scene.by(&scene.runtime().with_file_name(program), verb);
    command.env("QUILT_FLOOR_RUNTIME", &scene.node().low_level).env("QUILT_FLOOR_CDI", document);
    command
}

/// The floor, linked as the runtime is, that only waits for the low-level runtime.
#[must_use]
pub fn waiting(scene: &Scene<'_>) -> Command {
    let mut command = scene.by(&scene.runtime().with_file_name(FLOOR_ALIKE), Verb::Create);
    command.env("QUILT_FLOOR_RUNTIME", &scene.node().low_level).env("QUILT_FLOOR_WAITS", "1");
    command
}

/// NVIDIA's runtime and its hooks.
#[derive(Clone, Debug)]
pub struct Nvidia {
    folder: PathBuf,
}

impl Nvidia {
    /// The one in the folder that `PEER` names.
    #[must_use]
    pub fn given() -> Option<Self> {
        let folder = PathBuf::from(std::env::var_os("PEER")?);
        folder.join("nvidia-container-runtime").is_file().then_some(Self { folder })
    }

    /// What it calls itself.
    #[must_use]
    pub fn version(&self) -> String {
        let out = Command::new(self.folder.join("nvidia-ctk")).arg("--version").output();
        out.map(|out| String::from_utf8_lossy(&out.stdout).replace('\n', " ").trim().to_owned()).unwrap_or_default()
    }

    /// Writes its configuration and the CDI document into `folder`; `hooks`: with the three that it generates by default.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn prepare(
        &self,
        folder: &Path,
        low_level: &Path,
        document: &Value,
        libraries: &str,
        hooks: bool,
    ) -> Result<()> {
        let mut document = document.clone();
        if hooks {
            let hook = self.folder.join("nvidia-cdi-hook");
            let one = |words: &[&str]| {
                let args: Vec<&str> = ["nvidia-cdi-hook"].iter().chain(words).copied().collect();
                json!({"hookName": "createContainer", "path": hook, "args": args})
            };
            // One that quilt-gpu's mounts do not make already.
            let link = format!("libnvidia-opticalflow.so.1::{libraries}/libnvidia-opticalflow.so");
            document["containerEdits"]["hooks"] = json!([
                one(&["create-symlinks", "--link", &link]),
                one(&["enable-cuda-compat", "--host-driver-version=535.309.01"]),
                one(&["update-ldcache", "--folder", libraries]),
            ]);
        }
        write(&folder.join("cdi/nvidia.json"), &document)?;
        let settings = folder.join("nvidia-container-runtime/config.toml");
        let parent = settings.parent().unwrap_or(folder);
        fs::create_dir_all(parent).map_err(|e| failed("create", parent, &e))?;
        let text = format!(
            "[nvidia-container-runtime]\nlog-level = \"error\"\nmode = \"cdi\"\nruntimes = [\"{}\"]\n\
             [nvidia-container-runtime.modes.cdi]\ndefault-kind = \"{KIND}\"\nspec-dirs = [\"{}\"]\n",
            low_level.display(),
            folder.join("cdi").display(),
        );
        fs::write(&settings, text).map_err(|e| failed("write", &settings, &e))
    }

    /// Removes what its hooks left in an image: two more files at each start.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn tidy(image: &Path) -> Result<()> {
        let folder = image.join("etc/ld.so.conf.d");
        for entry in fs::read_dir(&folder).map_err(|e| failed("list", &folder, &e))?.flatten() {
            if entry.file_name().to_string_lossy().contains("nvcr") {
                fs::remove_file(entry.path()).map_err(|e| failed("remove", &entry.path(), &e))?;
            }
        }
        Ok(())
    }

    /// A call of a scene through it.
    #[must_use]
    pub fn command(&self, scene: &Scene<'_>, verb: Verb, folder: &Path) -> Command {
        let mut command = scene.by(&self.folder.join("nvidia-container-runtime"), verb);
        command.env("XDG_CONFIG_HOME", folder);
        command
    }
}
