//! `heft context`: leaders under names.

mod file;

pub(crate) use file::{Contexts, check_leaders};
