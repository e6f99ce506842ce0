//! Grace periods of the kernel (RCU), for which whoever makes a container waits: a process that enters a control group, a mount
//! that goes. Left to themselves they end up to ten milliseconds later or sooner, by chance, which hides what is measured.

use std::fs;

const SWITCH: &str = "/sys/kernel/rcu_expedited";

/// Grace periods end at once as long as this is there.
pub struct Expedited(Option<String>);

impl Expedited {
    /// From now on, where the kernel has the switch and we may turn it.
    #[must_use]
    pub fn new() -> Self {
        let before = fs::read_to_string(SWITCH).ok();
        Self(before.filter(|_| fs::write(SWITCH, "1").is_ok()))
    }

    /// What that means for who reads figures.
    #[must_use]
    pub fn told(&self) -> String {
        match self.0 {
            Some(_) => format!("{SWITCH} is 1: nobody waits for a grace period by chance"),
            None => format!("{SWITCH} is as it was: whoever makes a container may wait for a grace period by chance"),
        }
    }
}

impl Default for Expedited {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Expedited {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = fs::write(SWITCH, before.trim());
        }
    }
}
