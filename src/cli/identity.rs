//! The client id of commands that submit jobs, unless one is named: the user at this host. It is
//! the same for all commands of a user, so that priorities order jobs of several commands.

use std::path::Path;

use crate::model::limits::CLIENT_ID_BYTES_MAX;

const PASSWD: &str = "/etc/passwd";
const HOSTNAME: &str = "/proc/sys/kernel/hostname";

/// What is read of a system file at most.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// `user@host`.
pub(crate) fn default_client_id() -> String {
    let uid = rustix::process::geteuid().as_raw();
    let listed = read(Path::new(PASSWD)).and_then(|passwd| user_in(&passwd, uid));
    let named = || ["LOGNAME", "USER"].into_iter().find_map(|name| std::env::var(name).ok());
    let user = listed.or_else(named).filter(|user| !user.is_empty());
    let user = user.unwrap_or_else(|| format!("uid-{uid}"));
    let host = read(Path::new(HOSTNAME)).map(|host| host.trim().to_owned());
    joined(&user, host.as_deref().filter(|host| !host.is_empty()).unwrap_or("localhost"))
}

fn read(path: &Path) -> Option<String> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The name of a user in the format of `/etc/passwd`.
fn user_in(passwd: &str, uid: u32) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

/// Both without control characters, and no longer than a client id may be.
fn joined(user: &str, host: &str) -> String {
    let mut id = String::new();
    for c in user.chars().chain(['@']).chain(host.chars()).filter(|c| !c.is_control()) {
        if id.len() + c.len_utf8() > CLIENT_ID_BYTES_MAX {
            break;
        }
        id.push(c);
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_name_is_looked_up_by_its_number() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\n# comment\nada:x:1000:1000::/home/ada:\n";
        assert_eq!(user_in(passwd, 1000).as_deref(), Some("ada"));
        assert_eq!(user_in(passwd, 0).as_deref(), Some("root"));
        assert_eq!(user_in(passwd, 7), None);
    }

    #[test]
    fn an_id_has_no_control_characters_and_fits_the_limit() {
        assert_eq!(joined("a\nb", "h\x1b1"), "ab@h1");
        let long = joined(&"ü".repeat(300), "host");
        assert!(long.len() <= CLIENT_ID_BYTES_MAX && long.len() > CLIENT_ID_BYTES_MAX - 2);
        assert_eq!(default_client_id(), default_client_id());
        assert!(default_client_id().contains('@'));
    }
}
