//! Subjects.
