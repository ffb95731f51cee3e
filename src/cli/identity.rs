//! Who runs the command: the part of client ids that all commands of a user have in common.

use std::fs;

use uuid::Uuid;

/// The longest user or host name that goes into a client id.
const NAME_CHARS_MAX: usize = 64;

/// The user and the host, such as `ann@host-1`.
pub(crate) fn user_at_host() -> String {
    // What a timer or a service runs has no USER, and is the same user.
    let uid = rustix::process::getuid().as_raw();
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let variable = || std::env::var("USER").ok().filter(|user| !user.is_empty());
    let user = name_of(uid, &users).map(str::to_owned).or_else(variable);
    let user = user.unwrap_or_else(|| format!("uid-{uid}"));
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    // The domain says nothing more to people, and a dot divides subjects.
    let host = host.trim().split('.').next().unwrap_or_default().to_owned();
    let host = if host.is_empty() { "localhost".to_owned() } else { host };
    format!("{}@{}", plain(&user), plain(&host))
}

/// The user's name in the list of users.
fn name_of(uid: u32, users: &str) -> Option<&str> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        (fields.nth(1)?.parse() == Ok(uid)).then_some(name)
    })
}

/// A client id that no other command has, by which the user's jobs are found all the same.
pub(crate) fn of_one_command() -> String {
    format!("{}/{}", user_at_host(), Uuid::new_v4().simple())
}

/// A name without what means something in a subject or a path.
fn plain(name: &str) -> String {
    let keep = |c: char| if c.is_alphanumeric() || c == '-' || c == '_' { c } else { '-' };
    name.chars().take(NAME_CHARS_MAX).map(keep).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::limits::CLIENT_ID_BYTES_MAX;

    #[test]
    fn an_id_is_the_users_and_each_commands_own() {
        let (user, one, other) = (user_at_host(), of_one_command(), of_one_command());
        assert!(one.starts_with(&format!("{user}/")) && one != other, "{one} {other}");
        assert_eq!(user.split('@').count(), 2, "{user}");
    }

    #[test]
    fn a_user_is_called_as_the_system_calls_it() {
        let users = "root:x:0:0::/root:/bin/sh\nnonsense\n:x:7\nann:x:1000:1000:Ann:/home/ann:\n";
        assert_eq!(
            [0, 1000, 7, 1].map(|uid| name_of(uid, users)),
            [Some("root"), Some("ann"), None, None]
        );
    }

    #[test]
    fn odd_names_fit_an_id() {
        assert_eq!(plain("DOM\\ann.b c/é"), "DOM-ann-b-c-é");
        let longest = format!("{0}@{0}/{1}", plain(&"x".repeat(500)), Uuid::nil().simple());
        assert!(longest.len() <= CLIENT_ID_BYTES_MAX, "{}", longest.len());
    }
}
