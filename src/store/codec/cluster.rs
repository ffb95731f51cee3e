//! Encodes and decodes what records and snapshots say about a cluster.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{
    CodecError, Reader, put_bool, put_len, put_str, put_u8, put_u32, put_u64, put_uuid, tag,
};
use crate::core::Record;
use crate::core::cluster::{Cluster, LEVEL_MAX, Office, Terms};
use crate::core::ids::{Index, Level, Node, Term};
use crate::core::members::{Address, AddressKind, Member, Members, Role};

/// Bytes of a member without an address: number, directory, role, count of its addresses.
const MEMBER_BYTES_MIN: usize = 4 + super::UUID_BYTES + 1 + 4;

/// Bytes of an address: kind, length of its text.
const ADDRESS_BYTES_MIN: usize = 1 + 4;

/// Bytes of a beginning of a term: record, term.
const TERM_BYTES: usize = 8 + 8;

/// Appends the members of a cluster.
pub fn put_members(members: &Members, out: &mut Vec<u8>) {
    put_uuid(members.cluster(), out);
    put_list(members.incoming(), out);
    put_bool(members.is_joint(), out);
    members.outgoing().into_iter().for_each(|list| put_list(list, out));
    put_len(members.removed().len(), out);
    members.removed().iter().for_each(|node| put_u32(node.0, out));
}

fn put_list(members: &[Member], out: &mut Vec<u8>) {
    put_len(members.len(), out);
    for Member { node, dir, addresses, role } in members {
        put_u32(node.0, out);
        put_uuid(*dir, out);
        put_u8(role_tag(*role), out);
        put_len(addresses.len(), out);
        for Address { kind, text } in addresses {
            put_u8(kind.code(), out);
            put_str(text, out);
        }
    }
}

/// Reads the members of a cluster, and leaves what follows them.
pub fn get_members(reader: &mut Reader<'_>) -> Result<Members, CodecError> {
    let start = reader.at();
    let (cluster, incoming) = (reader.uuid()?, get_list(reader)?);
    let outgoing = if reader.bool()? { Some(get_list(reader)?) } else { None };
    let at = reader.at();
    let removed = reader.list(4, Reader::node)?;
    if !removed.is_sorted_by(|before, after| before < after) {
        return Err(CodecError { at, what: "removed numbers are not in order".to_owned() });
    }
    let removed: BTreeSet<Node> = removed.into_iter().collect();
    Members::from_parts(cluster, incoming, outgoing, removed)
        .map_err(|error| CodecError { at: start, what: error.to_string() })
}

fn get_list(reader: &mut Reader<'_>) -> Result<Vec<Member>, CodecError> {
    let at = reader.at();
    let members = reader.list(MEMBER_BYTES_MIN, |reader| {
        let (node, dir, role) = (reader.node()?, reader.uuid()?, get_role(reader)?);
        Ok(Member { node, dir, role, addresses: reader.list(ADDRESS_BYTES_MIN, get_address)? })
    })?;
    if !members.is_sorted_by(|before, after| before.node < after.node) {
        return Err(CodecError { at, what: "members are not in the order of numbers".to_owned() });
    }
    Ok(members)
}

fn get_address(reader: &mut Reader<'_>) -> Result<Address, CodecError> {
    let at = reader.at();
    let kind = AddressKind::from_code(reader.u8()?)
        .ok_or_else(|| CodecError { at, what: "0 is not a kind of address".to_owned() })?;
    Ok(Address { kind, text: reader.str()?.into() })
}

const fn role_tag(role: Role) -> u8 {
    match role {
        Role::Voter => tag::VOTER,
        Role::Learner => tag::LEARNER,
    }
}

fn get_role(reader: &mut Reader<'_>) -> Result<Role, CodecError> {
    let start = reader.at();
    match reader.u8()? {
        tag::VOTER => Ok(Role::Voter),
        tag::LEARNER => Ok(Role::Learner),
        unknown => Err(super::unknown_tag(start, "role of a member", unknown)),
    }
}

/// Reads what follows the kind of a record about the cluster.
pub(super) fn get_record(
    kind: u8,
    start: usize,
    reader: &mut Reader<'_>,
) -> Result<Record, CodecError> {
    Ok(match kind {
        tag::TERM => Record::Term { term: reader.term()? },
        tag::MEMBERS => Record::Members { members: Arc::new(get_members(reader)?) },
        tag::LEVEL => Record::Level { level: reader.level()? },
        tag::MARK => Record::Mark { id: reader.uuid()? },
        tag::OFFICE => Record::Office { leader: reader.node()?, at: reader.micros()? },
        unknown => return Err(super::unknown_tag(start, "record", unknown)),
    })
}

/// Appends what a snapshot says about the cluster.
pub fn put_cluster(cluster: &Cluster, terms: &Terms, out: &mut Vec<u8>) {
    // Whole, so that a member that is added is thought of here.
    let Cluster { members, term, level, office } = cluster;
    put_u64(term.0, out);
    put_u32(level.0, out);
    put_bool(members.is_some(), out);
    members.iter().for_each(|members| put_members(members, out));
    put_bool(office.is_some(), out);
    if let Some(Office { leader, at }) = office {
        put_u32(leader.0, out);
        put_u64(at.0, out);
    }
    put_len(terms.begun().len(), out);
    for (index, term) in terms.begun() {
        put_u64(index.0, out);
        put_u64(term.0, out);
    }
}

/// Reads what a snapshot says about the cluster.
pub fn get_cluster(reader: &mut Reader<'_>) -> Result<(Cluster, Terms), CodecError> {
    let cluster = Cluster {
        term: Term(reader.u64()?),
        level: reader.level()?,
        members: if reader.bool()? { Some(Arc::new(get_members(reader)?)) } else { None },
        office: if reader.bool()? {
            Some(Office { leader: reader.node()?, at: reader.micros()? })
        } else {
            None
        },
    };
    let at = reader.at();
    let begun =
        reader.list(TERM_BYTES, |reader| Ok((Index(reader.u64()?), Term(reader.u64()?))))?;
    let terms = Terms::restore(begun)
        .ok_or_else(|| CodecError { at, what: "terms are too many, or not in order".to_owned() })?;
    Ok((cluster, terms))
}

/// What only these have.
impl Reader<'_> {
    fn node(&mut self) -> Result<Node, CodecError> {
        Ok(Node(self.u32()?))
    }

    /// A term that is not 0.
    fn term(&mut self) -> Result<Term, CodecError> {
        let at = self.at();
        match self.u64()? {
            0 => Err(CodecError { at, what: "0 is not a term".to_owned() }),
            term => Ok(Term(term)),
        }
    }

    fn level(&mut self) -> Result<Level, CodecError> {
        let at = self.at();
        let level = Level(self.u32()?);
        if level > LEVEL_MAX {
            let what = format!("level {level} is above {LEVEL_MAX}, the highest this heft knows");
            return Err(CodecError { at, what });
        }
        Ok(level)
    }
}
