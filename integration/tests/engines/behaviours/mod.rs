//! What must be so on every engine, one function each. A behaviour begins with an empty node and leaves one.

mod cdi;
mod grants;
mod life;
mod refusals;
mod stats;

use integration::Result;

use crate::rows::Yard;

/// A behaviour, tried.
pub(crate) type Behaviour = fn(&mut Yard) -> Result<()>;

/// The table's columns.
pub(crate) const BEHAVIOURS: [(&str, Behaviour); 23] = [
    ("no GPU asked", grants::none),
    ("one GPU by environment", grants::one_by_environment),
    ("one GPU by annotation", grants::one_by_annotation),
    ("one GPU by pod annotation", grants::one_by_pod_annotation),
    ("one GPU by reservation token", grants::one_by_token),
    ("all GPUs", grants::all),
    ("pinned id", grants::pinned),
    ("host root bound", grants::host_root),
    ("user namespace", grants::user_namespace),
    ("CDI devices", cdi::devices),
    ("full node", refusals::full_node),
    ("bind refused", refusals::bind),
    ("device refused", refusals::device),
    ("strict refused", refusals::strict),
    ("privileged", refusals::privileged),
    ("exec", life::exec),
    ("restart", life::restart),
    ("told by stats", stats::told),
    ("stop frees", life::stop),
    ("failed create", life::failed_create),
    ("update", life::update),
    ("parallel creates", life::parallel),
    ("engine killed", life::engine_killed),
];
