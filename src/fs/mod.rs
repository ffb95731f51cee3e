//! Directories and what lies beneath them: whether a directory is this user's own, and files that
//! are opened by handle so that no link leads elsewhere.

pub(crate) mod dirfd;
pub(crate) mod own_dir;
