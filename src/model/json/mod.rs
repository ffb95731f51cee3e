//! JSON as System.Text.Json writes and reads it by default (M13, M14). `read` and `write` know
//! nothing of any single model, and no model knows how JSON is spelled; `JsonModel` is the seam
//! between the two. Only the models call it.

pub(crate) mod base64;
pub(crate) mod fault;
pub mod read;
pub(crate) mod scan;
mod visit;
pub mod write;

pub use read::{Object, Schema, Value};
pub use write::ObjectWriter;

use super::error::ModelError;

/// A model with a JSON form.
pub trait JsonModel: Sized {
    /// The model's name and members.
    const SCHEMA: Schema;

    /// Takes the model out of an object read by its own `SCHEMA`.
    fn read(object: &Object<'_>) -> Result<Self, ModelError>;

    /// Writes the members, in the order of their declaration.
    fn write(&self, object: &mut ObjectWriter<'_>);

    /// About how long the JSON will be, so that a large content is encoded into place and not
    /// moved.
    fn json_bytes(&self) -> usize {
        256
    }

    /// Reads the model from a frame's payload.
    fn parse(payload: &[u8]) -> Result<Self, ModelError> {
        Self::read(&Object::parse(Self::SCHEMA, payload)?)
    }

    /// The JSON as .NET would write it.
    fn to_json(&self) -> Vec<u8> {
        let mut out = String::with_capacity(self.json_bytes());
        write::object(&mut out, |object| self.write(object));
        out.into_bytes()
    }
}
