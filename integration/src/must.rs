//! A check that gives its reason as an error: for behaviours that are tried on many engines and must not panic.

use std::fmt::Display;

use crate::error::{Error, Result};

/// Fails with this sentence unless `so`.
///
/// # Errors
/// The sentence.
pub fn must(so: bool, otherwise: impl Display) -> Result<()> {
    if so { Ok(()) } else { Err(Error::new(otherwise.to_string())) }
}
