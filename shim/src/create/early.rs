//! What is known of a container before anything is taken for it: who it would be, and what keeps it from starting.

use std::borrow::Cow;

use contract::config::Profile;
use contract::key::id_is_plain;
use contract::request::Asked;
use contract::{Code, Refusal};
use guard::System;
use ledger::{Holder, Ledger};
use node::process::{self, Process};

use super::Making;
use crate::argv::Verb;
use crate::container::Container;
use crate::joined;
use crate::preserved;
use crate::words;

impl Making<'_> {
    /// What is known before anything is taken; most of it only concerns containers with GPUs.
    pub(super) fn may_start(&self, ledger: Option<&Ledger>) -> Result<(), Refusal> {
        let Container { call, setup, .. } = self.container;
        // crun only; where we run inside a user namespace nothing could be filtered anyway.
        if call.value("cgroup-manager") == Some("disabled") && self.system.initial_user_namespace() {
            let message = "without control groups nothing keeps the container from the node's GPUs";
            let refusal = Refusal::new(Code::UnsafeSpec, "args-cgroup-manager", message, "leave the flag out");
            return Err(refusal.at("argv/--cgroup-manager", "disabled"));
        }
        let (spec, asked) = (&self.decision.spec, self.decision.wants_gpu());
        let joined = || joined::judge((setup, &self.container.key), ledger, spec, &self.bundle.path, asked);
        if let Some(refusal) = preserved::judge(call, setup).or_else(joined) {
            return Err(refusal);
        }
        let wants_gpu = self.decision.wants_gpu();
        // Who is granted GPUs now is asked this under the ledger's lock.
        let later = matches!(self.decision.asked, Asked::Gpus(_)) && !setup.rootless;
        let held = |cgroup: &str| ledger.and_then(|ledger| ledger.refuses_cgroup(cgroup, &self.container.key));
        if let Some(refusal) = self.cgroup().filter(|_| !later).and_then(|cgroup| held(&cgroup)) {
            return Err(refusal);
        }
        if (wants_gpu || setup.config.policy.profile == Profile::Hardened) && !id_is_plain(call.id) {
            return Err(Refusal::new(
                Code::UnsafeSpec,
                "args-id",
                "a container id is letters, digits and _ + - .",
                "give another id",
            )
            .at("argv/id", call.id));
        }
        if !wants_gpu {
            return Ok(());
        }
        if let Some(refusal) = self.bundle.holds_no_gpu(spec, self.system) {
            return Err(refusal);
        }
        if call.verb == Verb::Restore && !setup.config.policy.allow_restore {
            return Err(Refusal::new(
                Code::Policy,
                "restore",
                "a container with GPUs cannot be restored from a checkpoint",
                "start it anew",
            ));
        }
        if let Some(refusal) = self.aside.and_then(|aside| aside.refusal.clone()) {
            return Err(refusal);
        }
        if self.container.exists() {
            return Err(self.already_there());
        }
        // One filter serves a cgroup: whoever is in it already would get this container's GPU.
        if let (Some(cgroup), Ok(mounts)) = (self.cgroup(), self.system.mounts())
            && node::cgroup::filters_nobody(&cgroup, mounts) == Ok(false)
        {
            let message = "this cgroup has processes already, which would get the GPU too";
            return Err(ledger::cgroup_refusal(&cgroup, message));
        }
        Ok(())
    }

    /// The low-level runtime would say so too, but not before our files of this key were replaced.
    pub(super) fn already_there(&self) -> Refusal {
        Refusal::new(
            Code::UnsafeSpec,
            "container-exists",
            format!("a container of this id already exists under {}", self.container.root.display()),
            "delete it first, or give another id",
        )
        .at("argv/id", self.container.call.id)
    }

    /// The container's cgroup, when its name is known before it is made.
    fn cgroup(&self) -> Option<Cow<'_, str>> {
        let named = self.decision.spec.path(&["linux", "cgroupsPath"]).and_then(|n| n.as_str());
        // Low-level runtimes name the cgroup after the container, unless systemd makes it.
        let default = || self.ways.default_group(self.container.call.id);
        let call = self.container.call;
        named.filter(|path| !path.is_empty()).map(Cow::from).or_else(|| (!call.has("systemd-cgroup")).then(default))
    }

    pub(super) fn holder(&self) -> Holder {
        Holder {
            key: self.container.key.clone(),
            container: self.container.call.id.to_owned(),
            state_root: self.container.root.to_string_lossy().into_owned(),
            low_level: self.container.low_level.to_string_lossy().into_owned(),
            cgroup: self.cgroup().map(Cow::into_owned),
            pod: words::in_pod(&self.decision.spec, &self.bundle.path),
            owner: self.owner(),
            creator: self.creator(),
        }
    }

    fn creator(&self) -> Process {
        self.aside.map_or_else(process::me, |aside| aside.engine)
    }

    fn owner(&self) -> Option<String> {
        let Container { setup, root, .. } = self.container;
        words::owner(&self.decision.spec, &self.bundle.path, &setup.config.owners.0, root)
    }
}
