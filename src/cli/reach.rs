//! Which leader a command talks to, and how it gets there.
//!
//! An address comes from `--leader`, else HEFT_LEADER, else a context, else it is the default. It
//! is known from where, so that an error can say what to change, and a hint prints a command that
//! works when it is pasted.

use std::env::VarError;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::congestion;
use super::context::{Contexts, check_leaders};
use super::exit::{Sourced, Usage};
use super::identity::default_client_id;
use super::status_pages::all_of;
use crate::answers::{Status, StatusList};
use crate::client::{Answered, Client, ClientError, Options};
use crate::peer::{is_unknown_host, look_up};
use crate::units::Span;

/// Where a leader is if nobody says so.
const LEADER_DEFAULT: &str = "127.0.0.1:5000";

const LEADER_VARIABLE: &str = "HEFT_LEADER";
const CONTEXT_VARIABLE: &str = "HEFT_CONTEXT";

/// How long an answer is waited for that takes reading all files of a blob or dataset.
const LONG_ANSWER_WAIT: Duration = Duration::from_secs(3600);

/// How long one of several leaders is tried before the next.
const TRY_WAIT: Duration = Duration::from_secs(2);

/// How long to wait when none of several leaders was there.
const ROUND_PAUSE: Duration = Duration::from_millis(200);

/// How a connection is made.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Connect {
    /// Time to try to reach the leader; status, dlq and cancel also wait that long for the
    /// handshake, and so does a job with large files.
    #[arg(long, value_name = "TIME", default_value = "10s", global = true)]
    connect_wait: Span,

    /// Time to wait for an answer: status, dlq, explain, cancel and the like. Commands that read
    /// all files, such as verify, get at least an hour.
    #[arg(long, value_name = "TIME", default_value = "30s", global = true)]
    answer_wait: Span,

    /// TCP congestion control, such as cubic (default on this machine: cubic or reno).
    #[arg(long, value_name = "NAME", global = true, value_parser = congestion)]
    tcp_congestion: Option<String>,
}

impl Connect {
    pub(crate) fn options(&self, client_id: &str) -> Options {
        let mut options = Options::new(client_id);
        options.connect_wait = Some(self.connect_wait.0);
        options.tuning.congestion.clone_from(&self.tcp_congestion);
        options
    }

    /// For a client that has something to ask. Without a Welcome it is of no use, so it waits for
    /// that as long as for the leader itself.
    pub(crate) fn asking_options(&self, client_id: &str) -> Options {
        // Longer than `connect_wait`, so that it is `connect` that gives up, and says how far it
        // came.
        let welcome_wait = self.connect_wait.0.saturating_add(Duration::from_secs(1));
        Options { welcome_wait, answer_wait: Some(self.answer_wait.0), ..self.options(client_id) }
    }
}

/// How the commands that talk to one leader reach it.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Reach {
    /// Leader address; of several the first that can be reached (default: HEFT_LEADER, the context,
    /// 127.0.0.1:5000).
    #[arg(short, long, value_name = "HOST:PORT[,HOST:PORT...]", global = true, value_parser = addresses)]
    leader: Option<Addresses>,

    /// Context to take the leader from (default: HEFT_CONTEXT, then the one that `heft context use`
    /// selected).
    #[arg(long, value_name = "NAME", global = true)]
    context: Option<String>,

    #[command(flatten)]
    connect: Connect,
}

/// Addresses on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Addresses(pub(super) Vec<String>);

/// Reads addresses with commas between them.
pub(super) fn addresses(text: &str) -> Result<Addresses, String> {
    check_leaders(text.split(',')).map(Addresses)
}

impl Reach {
    pub(crate) fn options(&self, client_id: &str) -> Options {
        self.connect.options(client_id)
    }

    /// For a client that has something to ask.
    pub(crate) fn asking_options(&self, client_id: &str) -> Options {
        self.connect.asking_options(client_id)
    }

    /// A client that only asks.
    pub(crate) async fn asking(&self, leader: &Leader) -> anyhow::Result<Client> {
        leader.connect(&self.asking_options("")).await
    }

    /// The same, for questions that take as long as it takes to read all files.
    pub(crate) async fn asking_for_long(&self, leader: &Leader) -> anyhow::Result<Client> {
        let answer_wait = Some(self.connect.answer_wait.0.max(LONG_ANSWER_WAIT));
        leader.connect(&Options { answer_wait, ..self.asking_options("") }).await
    }

    /// One list of a status, all of it. Of an older leader it is what its status has.
    pub(crate) async fn listed(&self, list: StatusList) -> anyhow::Result<Answered<Status>> {
        let client = self.asking(&self.leader().await?).await?;
        let listed = all_of(&client, &list).await?;
        client.close().await;
        Ok(listed)
    }

    /// The client id of the user's jobs: the context's, else the user at this host.
    pub(crate) fn client_id(&self) -> Result<String, Usage> {
        let leaders = self.leaders()?;
        Ok(leaders.client_id().map_or_else(default_client_id, str::to_owned))
    }

    /// The leaders that the command line, the environment and the contexts name. Nobody is asked.
    pub(crate) fn leaders(&self) -> Result<Leaders, Usage> {
        let wishes = Wishes {
            leader: self.leader.clone(),
            context: self.context.clone(),
            leader_variable: variable(LEADER_VARIABLE)?,
            context_variable: variable(CONTEXT_VARIABLE)?,
        };
        resolve(wishes, Contexts::read)
    }

    /// The leader that the command talks to: of several the first that takes a connection.
    pub(crate) async fn leader(&self) -> anyhow::Result<Leader> {
        self.first_of(&self.leaders()?).await
    }

    /// The same, of these.
    pub(crate) async fn first_of(&self, leaders: &Leaders) -> anyhow::Result<Leader> {
        let wait = self.connect.connect_wait.0;
        let found = match leaders.addresses.as_slice() {
            [] => Ok(0),
            [one] => is_known(one, wait).await.map(|()| 0),
            several => first_reachable(several, wait).await,
        };
        let at = found.map_err(|error| leaders.blame(error))?;
        let address = leaders.addresses.get(at).cloned().unwrap_or_default();
        if at > 0 {
            super::note(&format!("using the leader {address}: those before it cannot be reached"));
        }
        Ok(Leader { address, is_usual: leaders.is_usual && at == 0, from: leaders.from.clone() })
    }
}

/// A variable of the environment; an empty one says nothing.
fn variable(name: &str) -> Result<Option<String>, Usage> {
    match std::env::var(name) {
        Ok(text) => Ok(Some(text).filter(|text| !text.is_empty())),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(Usage(format!("{name} is not UTF-8"))),
    }
}

/// What was said of leaders, in the order in which it counts.
#[derive(Clone, Debug, Default)]
struct Wishes {
    leader: Option<Addresses>,
    leader_variable: Option<String>,
    context: Option<String>,
    context_variable: Option<String>,
}

/// From where an address is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Origin {
    Flag,
    Variable,
    /// `how` it was chosen.
    Context {
        name: String,
        how: &'static str,
        path: PathBuf,
    },
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag => write!(f, "the address is from --leader"),
            Origin::Variable => write!(f, "the address is from {LEADER_VARIABLE}"),
            Origin::Context { name, how, path } => {
                let path = path.display();
                write!(f, "the address is from the context {name:?} in {path}, {how}")
            }
            Origin::Default => write!(
                f,
                "the address is the default: name another with -l, {LEADER_VARIABLE} or `heft \
                 context`"
            ),
        }
    }
}

/// The leaders of a command: at least one, in the order in which they are tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leaders {
    addresses: Vec<String>,
    from: Origin,
    /// The client id of the context, if it gave the address or was named.
    client_id: Option<String>,
    /// Whether a command without a flag goes to the same.
    is_usual: bool,
}

impl Leaders {
    /// The client id that the context says.
    pub(crate) fn client_id(&self) -> Option<&str> {
        self.client_id.as_deref()
    }

    fn blame(&self, error: ClientError) -> anyhow::Error {
        blame(&self.from, error)
    }
}

/// The addresses.
impl fmt::Display for Leaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.addresses.join(", "))
    }
}

/// The leader that a command talks to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leader {
    address: String,
    from: Origin,
    is_usual: bool,
}

impl Leader {
    /// One that the command line names.
    #[cfg(test)]
    pub(crate) fn named(address: &str) -> Leader {
        Leader { address: address.to_owned(), from: Origin::Flag, is_usual: false }
    }

    /// Its address.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// A command for a person to type, such as `heft result get -l 10.0.0.1:5000`: with the address
    /// only if the command would go elsewhere without it.
    pub(crate) fn command(&self, words: &str) -> String {
        match self.is_usual {
            true => format!("heft {words}"),
            false => format!("heft {words} -l {}", self.address),
        }
    }

    /// Starts a client and waits until the leader is reached.
    pub(crate) async fn connect(&self, options: &Options) -> anyhow::Result<Client> {
        Client::connect(&self.address, options).await.map_err(|error| self.blame(error))
    }

    /// The error with where the address is from, if that was not the command line and the address
    /// may be the reason.
    pub(crate) fn blame(&self, error: ClientError) -> anyhow::Error {
        blame(&self.from, error)
    }
}

fn blame(from: &Origin, error: ClientError) -> anyhow::Error {
    let is_of_the_address = match &error {
        ClientError::Unreachable { .. }
        | ClientError::UnknownHost { .. }
        | ClientError::NoWelcome { .. }
        | ClientError::NotSupported { .. }
        | ClientError::BadAddress(_) => true,
        ClientError::TooLarge { .. }
        | ClientError::BadInput { .. }
        | ClientError::SubjectTooLong { .. }
        | ClientError::ClientIdTooLong { .. }
        | ClientError::JobIdInUse(_)
        | ClientError::NoAnswer { .. }
        | ClientError::Disconnected { .. }
        | ClientError::Busy { .. }
        | ClientError::TooManyFollows { .. }
        | ClientError::Answered(_)
        | ClientError::NotFound(_)
        | ClientError::BadAnswer { .. }
        | ClientError::Closed => false,
    };
    match is_of_the_address && *from != Origin::Flag {
        true => Sourced { error, from: from.to_string() }.into(),
        false => error.into(),
    }
}

/// Which leaders count, and from where they are. The contexts are read where they matter.
fn resolve(
    wishes: Wishes,
    contexts: impl Fn() -> Result<Contexts, Usage>,
) -> Result<Leaders, Usage> {
    let is_said = wishes.leader.is_some() || wishes.context.is_some();
    let mut leaders = resolve_once(&wishes, &contexts)?;
    if is_said {
        let usual = resolve_once(&Wishes { leader: None, context: None, ..wishes }, &contexts);
        leaders.is_usual = usual.is_ok_and(|usual| usual.addresses == leaders.addresses);
    }
    Ok(leaders)
}

fn resolve_once(
    wishes: &Wishes,
    contexts: &impl Fn() -> Result<Contexts, Usage>,
) -> Result<Leaders, Usage> {
    // A context that was named is meant for all that it says.
    let named = match &wishes.context {
        Some(name) => {
            let contexts = contexts()?;
            let context = contexts.find(name)?.clone();
            Some((name.clone(), context, "named by --context", contexts.path))
        }
        None => None,
    };
    let client_id = named.as_ref().and_then(|(_, context, ..)| context.client_id.clone());
    let leaders =
        |addresses, from| Leaders { addresses, from, client_id: client_id.clone(), is_usual: true };
    if let Some(Addresses(addresses)) = &wishes.leader {
        return Ok(leaders(addresses.clone(), Origin::Flag));
    }
    if let Some(text) = &wishes.leader_variable {
        let Addresses(addresses) =
            addresses(text).map_err(|why| Usage(format!("{LEADER_VARIABLE}: {why}")))?;
        if let Some(name) = &wishes.context {
            tracing::warn!(
                "{LEADER_VARIABLE} names the leader ({text}) and goes before --context {name}: \
                 unset it, or use -l"
            );
        }
        return Ok(leaders(addresses, Origin::Variable));
    }
    let chosen = match (named, &wishes.context_variable) {
        (Some(named), _) => Some(named),
        (None, variable) => {
            let contexts = contexts()?;
            let (name, how) = match (variable, &contexts.current) {
                (Some(name), _) => (Some(name.clone()), "named by HEFT_CONTEXT"),
                (None, current) => (current.clone(), "selected by `heft context use`"),
            };
            match name {
                Some(name) => {
                    let context = contexts.find(&name)?.clone();
                    Some((name, context, how, contexts.path))
                }
                None => None,
            }
        }
    };
    Ok(match chosen {
        Some((name, context, how, path)) => Leaders {
            client_id: context.client_id,
            ..leaders(context.leaders, Origin::Context { name, how, path })
        },
        None => leaders(vec![LEADER_DEFAULT.to_owned()], Origin::Default),
    })
}

/// Whether there may be a leader at this address: a host name that is unknown will not be known in
/// a moment. Everything else is for the connection to find out.
async fn is_known(address: &str, wait: Duration) -> Result<(), ClientError> {
    match timeout(wait, look_up(address)).await {
        Ok(Err(error)) if is_unknown_host(&error) => {
            Err(ClientError::UnknownHost { leader: address.to_owned(), why: error.to_string() })
        }
        Ok(_) => Ok(()),
        Err(_) => Err(ClientError::Unreachable {
            leader: address.to_owned(),
            why: "the host name was not resolved".to_owned(),
            waited_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
        }),
    }
}

/// Tries the addresses one after the other, over and over; which one takes a connection.
async fn first_reachable(addresses: &[String], wait: Duration) -> Result<usize, ClientError> {
    let started = Instant::now();
    let left = || wait.saturating_sub(started.elapsed());
    let mut whys: Vec<String> = vec!["no answer yet".to_owned(); addresses.len()];
    loop {
        let mut unknown = 0;
        for ((at, address), why) in addresses.iter().enumerate().zip(&mut whys) {
            // Each is tried at least once, however little time there is.
            let wait = left().clamp(Duration::from_millis(1), TRY_WAIT);
            let connecting = async {
                let found = look_up(address).await?;
                TcpStream::connect(found.as_slice()).await
            };
            match timeout(wait, connecting).await {
                Ok(Ok(_)) => return Ok(at),
                Ok(Err(error)) => {
                    unknown += usize::from(is_unknown_host(&error));
                    *why = error.to_string();
                }
                Err(_) => {}
            }
        }
        if unknown == addresses.len() {
            let (leader, why) = (addresses.join(", "), whys.join("; "));
            return Err(ClientError::UnknownHost { leader, why });
        }
        if left().is_zero() {
            let waited_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
            let (leader, why) = (addresses.join(", "), whys.join("; "));
            return Err(ClientError::Unreachable { leader, why, waited_ms });
        }
        tokio::time::sleep(ROUND_PAUSE.min(left())).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::exit::{UNAVAILABLE, code_of};

    fn contexts(text: &str) -> Result<Contexts, Usage> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        std::fs::write(&path, text).unwrap();
        Contexts::read_from(&path)
    }

    const FILE: &str = "current = \"one\"\n[context.one]\nleaders = [\"one:1\"]\nclient_id = \"me\"\n\
                        [context.two]\nleaders = [\"two:2\"]\n";

    fn wishes(leader: &str, variable: &str, context: &str, context_variable: &str) -> Wishes {
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        Wishes {
            leader: some(leader).map(|text| addresses(&text).unwrap()),
            leader_variable: some(variable),
            context: some(context),
            context_variable: some(context_variable),
        }
    }

    #[test]
    fn the_flag_goes_before_the_variable_before_the_contexts_before_the_default() {
        for (said, file, address, from, client, is_usual) in [
            (wishes("f:9", "v:8", "two", "two"), FILE, "f:9", "--leader", None, false),
            (wishes("", "v:8", "two", "two"), FILE, "v:8", "HEFT_LEADER", None, true),
            (wishes("", "", "two", "one"), FILE, "two:2", "named by --context", None, false),
            (wishes("", "", "", "two"), FILE, "two:2", "named by HEFT_CONTEXT", None, true),
            (
                wishes("", "", "", ""),
                FILE,
                "one:1",
                "selected by `heft context use`",
                Some("me"),
                true,
            ),
            (wishes("", "", "", ""), "", "127.0.0.1:5000", "the default", None, true),
            // The address alone says whether a command without it goes to the same.
            (wishes("one:1", "", "", ""), FILE, "one:1", "--leader", None, true),
            (wishes("127.0.0.1:5000", "", "", ""), "", "127.0.0.1:5000", "--leader", None, true),
            (wishes("f:9", "", "one", ""), FILE, "f:9", "--leader", Some("me"), false),
            // A file that cannot be read is of no matter to who names the leader.
            (wishes("f:9", "", "", ""), "nonsense", "f:9", "--leader", None, false),
            (wishes("", "v:8", "", ""), "nonsense", "v:8", "HEFT_LEADER", None, true),
        ] {
            let leaders = resolve(said.clone(), || contexts(file)).unwrap();
            assert_eq!(leaders.to_string(), address, "{said:?}");
            assert!(leaders.from.to_string().contains(from), "{said:?}: {}", leaders.from);
            assert_eq!((leaders.client_id(), leaders.is_usual), (client, is_usual), "{said:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_where_it_stands() {
        let error = |said, file| {
            let Usage(text) = resolve(said, || contexts(file)).unwrap_err();
            text
        };
        assert!(error(wishes("", "nowhere", "", ""), "").starts_with("HEFT_LEADER: \"nowhere\""));
        let text = error(wishes("", "", "twoo", ""), FILE);
        assert!(text.contains("no context \"twoo\"") && text.contains("\"two\"?"), "{text}");
        assert!(error(wishes("", "", "", "x"), "").contains("add one with `heft context add`"));
        assert!(error(wishes("", "", "", ""), "nonsense").contains("it is not TOML"));
    }

    #[tokio::test]
    async fn of_several_leaders_the_first_that_takes_a_connection_is_taken() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let there = listener.local_addr().unwrap().to_string();
        let gone = "127.0.0.1:1".to_owned();
        let wait = Duration::from_secs(10);
        let found = first_reachable(&[gone.clone(), there], wait).await;
        assert_eq!(found, Ok(1));
        let error = first_reachable(&[gone.clone(), gone.clone()], Duration::ZERO).await;
        let error = error.unwrap_err();
        assert!(error.to_string().contains(&format!("cannot reach {gone}, {gone}: ")), "{error}");
    }

    #[test]
    fn an_error_says_where_the_address_is_from_unless_that_is_the_command_line() {
        let error = || ClientError::Closed;
        let away = || ClientError::Unreachable {
            leader: "v:8".to_owned(),
            why: "refused".to_owned(),
            waited_ms: 5,
        };
        let text = |error: anyhow::Error| (code_of(&error), format!("{error:#}"));
        let (code, said) = text(blame(&Origin::Variable, away()));
        assert_eq!(code, UNAVAILABLE);
        assert_eq!(said, format!("{} (the address is from HEFT_LEADER)", away()));
        assert_eq!(text(blame(&Origin::Flag, away())).1, away().to_string());
        assert_eq!(text(blame(&Origin::Default, error())).1, error().to_string());
    }

    #[test]
    fn a_command_to_paste_names_the_leader_only_where_it_must() {
        let leader = |is_usual| Leader { address: "a:1".to_owned(), from: Origin::Flag, is_usual };
        assert_eq!(leader(true).command("dlq show"), "heft dlq show");
        assert_eq!(leader(false).command("dlq show"), "heft dlq show -l a:1");
    }
}
