//! What the parts of a judgement know of each other, and the machine's answers, each asked for once and only when needed.

use std::borrow::Cow;
use std::cell::OnceCell;

use contract::Refusal;
use contract::config::Profile;
use contract::rule::Rule;

use crate::Case;
use crate::findings::Verdict;
use crate::groups;
use crate::numbers::{self, Numbers, Share};
use crate::paths;
use crate::system::System;

/// One judgement's view.
pub(crate) struct Setting<'a> {
    pub(crate) case: &'a Case<'a>,
    pub(crate) machine: Machine<'a>,
    /// The container may undo a device filter: CAP_SYS_ADMIN.
    pub(crate) sys_admin: bool,
    /// Its device list allows everything.
    pub(crate) allows_all: bool,
    /// Both.
    pub(crate) privileged: bool,
}

impl Setting<'_> {
    pub(crate) fn hardened(&self) -> bool {
        self.case.policy.profile == Profile::Hardened
    }

    /// Whether one of the operator's exceptions lets this container do what the rule refuses.
    pub(crate) fn excuses(&self, rule: &str) -> bool {
        let here = self.case.workload;
        let meets = |wanted: &Option<String>, is: Option<&str>| wanted.is_none() || wanted.as_deref() == is;
        self.case.exceptions.iter().any(|one| {
            one.rules.iter().any(|excused| excused.0 == rule)
                && meets(&one.namespace, here.map(|here| here.namespace))
                && meets(&one.container, here.map(|here| here.container))
        })
    }

    /// A refusal that an exception may turn into a note of the same rule.
    pub(crate) fn weigh(&self, refusal: Refusal) -> Verdict {
        if self.excuses(refusal.rule) {
            return Ok(vec![(refusal.rule, format!("let by the node's policy: {}", refusal.message))]);
        }
        Err(refusal)
    }

    /// Whether root in the container may be root of the machine, whose files the kernel's are: not where a user namespace's
    /// ids are all others.
    pub(crate) fn is_machines_root(&self) -> bool {
        self.machine.filters() && groups::can_write(self.case.spec)
    }

    /// Whether the policy leaves this capability alone.
    pub(crate) fn allows_capability(&self, name: &str) -> bool {
        self.case.policy.allow_capabilities.iter().any(|allowed| allowed.0 == name)
    }

    /// Our own folders, written plainly.
    pub(crate) fn own_folders(&self) -> impl Iterator<Item = Cow<'_, str>> {
        self.case.own_paths.iter().map(|path| paths::clean(path)).filter(|path| path != "/")
    }

    /// Those that lie in no other one: what hides the outer one hides the inner one.
    pub(crate) fn outer_folders(&self) -> Vec<Cow<'_, str>> {
        let all: Vec<_> = self.own_folders().collect();
        let lies_in = |folder: &str, outer: &str| folder != outer && paths::below(folder, outer).is_some();
        let mut outer = all.clone();
        outer.retain(|folder| !all.iter().any(|other| lies_in(folder, other)));
        outer
    }

    /// What a tenant does instead of naming a GPU, depending on whether it already asked for one.
    pub(crate) fn way_out(&self, what: &str) -> String {
        if self.case.gpu_asked {
            format!("leave {what} out: the GPUs that were asked for are added by the runtime")
        } else {
            format!("leave {what} out, and ask for a GPU with {}", self.case.asking)
        }
    }
}

/// The machine's answers.
pub(crate) struct Machine<'a> {
    pub(crate) system: &'a dyn System,
    drivers: OnceCell<Result<Numbers, String>>,
    numbers: OnceCell<Numbers>,
    filter: OnceCell<bool>,
}

impl<'a> Machine<'a> {
    pub(crate) fn new(system: &'a dyn System) -> Self {
        Self { system, drivers: OnceCell::new(), numbers: OnceCell::new(), filter: OnceCell::new() }
    }

    /// The numbers without DRM.
    fn drivers(&self) -> Result<&Numbers, String> {
        let read = || Numbers::of_drivers(self.system);
        self.drivers.get_or_init(read).as_ref().map_err(String::clone)
    }

    /// All GPU numbers.
    pub(crate) fn numbers(&self) -> Result<&Numbers, String> {
        let drivers = self.drivers()?;
        Ok(self.numbers.get_or_init(|| drivers.clone().with_system_drm(self.system)))
    }

    /// All GPU numbers, if they had to be found out.
    pub(crate) fn into_numbers(self) -> Option<Numbers> {
        self.numbers.into_inner()
    }

    /// Whether a device filter can be attached to a container started from here.
    pub(crate) fn filters(&self) -> bool {
        *self.filter.get_or_init(|| self.system.initial_user_namespace())
    }

    /// Whether a character device that the tenant names is a GPU. The same as [`Numbers::is_gpu`], asking less.
    pub(crate) fn is_gpu(&self, major: u32, minor: u32) -> Result<bool, String> {
        Ok(match numbers::share(major) {
            Share::Whole => true,
            Share::Fixed if numbers::is_told_by_misc(major, Some(minor)) => self.drivers()?.is_gpu(major, minor),
            Share::Fixed => numbers::fixed_has(major, Some(minor)),
            Share::Driver => self.drivers()?.is_gpu(major, minor),
            Share::Vendor => match numbers::vendor_is_nvidias(self.system.drm_vendor(minor)) {
                Some(known) => known,
                None => self.drivers()?.has_driver(),
            },
        })
    }

    /// Whether a rule for character devices speaks about any GPU number. The same as [`Numbers::are_met_by`], asking less.
    pub(crate) fn is_met_by(&self, rule: &Rule) -> Result<bool, String> {
        let Some(major) = rule.major else {
            return Ok(true);
        };
        Ok(match numbers::share(major) {
            Share::Whole => true,
            Share::Fixed if numbers::is_told_by_misc(major, rule.minor) => self.drivers()?.are_met_by(rule),
            Share::Fixed => numbers::fixed_has(major, rule.minor),
            Share::Driver => self.drivers()?.are_met_by(rule),
            Share::Vendor => match rule.minor {
                Some(minor) => self.is_gpu(major, minor)?,
                None => self.numbers()?.are_met_by(rule),
            },
        })
    }
}
