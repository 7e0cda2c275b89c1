//! `narrows serve --listen`: where clients come in, and what becomes of each.

use std::fs::Permissions;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use narrows_bus::config::{Door, Limits, Listen};
use narrows_bus::listen::{Listener, bind};
use narrows_govern::{Method, Principal};
use narrows_link::{InputBudget, InputShare, Link, Options};
use narrows_wire::{Code as Problem, DEFAULT_MAX_LINE_BYTES, Frame, Kind, RpcError, message};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::guests::{Guests, NOT_ADMITTED_OPTIONS};
use super::host::{Chain, Host};
use super::leaving::Leaving;
use super::slots::{Slot, Slots};
use super::web::{Newcomer, Serving, Web};
use super::{door, peer, stand};
use crate::failure::{Code, Failure};
use crate::output;
use crate::terminal::line;

/// How long a client may take to say something that is a message.
const SILENCE: Duration = Duration::from_secs(30);

/// How long somebody for whom there is no room may take to ask something, and how many may at once.
const GLANCE: Duration = Duration::from_secs(1);
const REFUSALS: usize = 64;

/// How many clients that are not admitted are told so at once. They take no slot of admitted clients.
const MAX_NOT_ADMITTED: usize = 64;

/// How many clients are identified at once. A client gets its slot after that.
const MAX_LOOKUPS: usize = 16;

/// How long nobody is let in after the system had no room for one.
const REST: Duration = Duration::from_millis(200);

/// A place where clients come in. Another transport is another one of these, and another [`Stream`].
enum Place {
    Tcp(TcpListener),
    Unix {
        listener: UnixListener,
        /// Its file goes with this.
        _file: Listener,
    },
    /// One client, until it was let in.
    Stdio(bool),
    /// All places for HTTP and WebSocket.
    Web(Box<Web>),
}

/// What a client came in by.
enum Stream {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
    Stdio,
    Web(Newcomer),
}

/// Who lets clients in, everywhere.
struct Reception {
    host: Host,
    slots: Arc<Slots>,
    /// What is held of unfinished messages of admitted clients on unix sockets, ports and stdio.
    input: Arc<InputBudget>,
    lookups: Arc<Semaphore>,
    not_admitted: Arc<Semaphore>,
    /// Room for those for whom there is none.
    refusals: Arc<Semaphore>,
    leaving: Leaving,
}

/// Serves whoever comes in at one of `places`, at most as many as the limits say, until somebody wants us to stop.
pub(super) async fn serve(
    host: Host,
    places: &[Listen],
    limits: &Limits,
    leaving: Leaving,
) -> Result<ExitCode, Failure> {
    let Some(ready) = leaving.unless(host.get_ready()).await else { return Err(leaving.failure()) };
    ready?;
    let has_web = places.iter().any(|place| matches!(place.at, Door::Web(_)));
    let slots = Slots::new(limits.max_connections, has_web || host.guests.has_file());
    let (web, webs) = Web::open(places, limits, &slots)?.unzip();
    let mut open: Vec<Place> = web.map(|web| Place::Web(Box::new(web))).into_iter().collect();
    let (mut doors, mut webs) = (Vec::new(), webs.into_iter().flatten());
    for place in places {
        if let Door::Web(_) = &place.at {
            doors.extend(webs.next());
        } else {
            let (place, at) = Place::open(&place.at, &host)?;
            open.push(place);
            doors.push(at);
        }
    }
    let door = door::open(&host.charge, host.roster.clone())?;
    let id = &host.charge.bundle.acp.front.id;
    for at in doors {
        say(&format!("listening on {at}, manifest {id}"));
    }
    if let Some(door) = &door {
        say(&format!("approvals come in at unix:{}", door.path.display()));
    }
    let [lookups, not_admitted, refusals] =
        [MAX_LOOKUPS, MAX_NOT_ADMITTED, REFUSALS].map(|count| Arc::new(Semaphore::new(count)));
    let input = InputBudget::new(
        limits.unfinished_input,
        limits.unfinished_input_per_identity.max(DEFAULT_MAX_LINE_BYTES),
    );
    let reception = Arc::new(Reception { host, slots, input, lookups, not_admitted, refusals, leaving });
    let mut receiving = JoinSet::new();
    for place in open {
        receiving.spawn(Arc::clone(&reception).receive(place));
    }
    while receiving.join_next().await.is_some() {}
    drop(door);
    reception.host.close().await;
    Ok(Code::Success.exit())
}

fn say(text: &str) {
    output::complain_briefly(format!("{}\n", line(text)));
}

impl Place {
    /// Opens a door. Also tells where it is: a port 0 has become a real one.
    fn open(door: &Door, host: &Host) -> Result<(Self, Door), Failure> {
        if *door == Door::Stdio {
            return Ok((Self::Stdio(false), Door::Stdio));
        }
        let (listener, at) = bind(door).map_err(|error| Failure::serve_door(&error))?;
        let ready = |error: io::Error| Failure::setup("listen", &error);
        let fd = listener.socket().map_err(ready)?;
        let place = match &at {
            Door::Unix(path) => {
                if host.guests.has_others() {
                    // Who they are is asked of the system; the mode keeps out nobody whom the file may name.
                    std::fs::set_permissions(path, Permissions::from_mode(0o666)).map_err(ready)?;
                }
                Self::Unix { listener: UnixListener::from_std(fd.into()).map_err(ready)?, _file: listener }
            }
            _ => Self::Tcp(TcpListener::from_std(fd.into()).map_err(ready)?),
        };
        Ok((place, at))
    }

    /// The next who comes in. Safe to cancel.
    async fn accept(&mut self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => listener.accept().await.map(|(stream, peer)| Stream::Tcp(stream, peer)),
            Self::Unix { listener, .. } => listener.accept().await.map(|(stream, _)| Stream::Unix(stream)),
            Self::Stdio(is_taken) if !*is_taken => {
                *is_taken = true;
                Ok(Stream::Stdio)
            }
            Self::Stdio(_) => std::future::pending().await,
            Self::Web(web) => web.accept().await.map(Stream::Web),
        }
    }

    /// Lets nobody in any more, and removes its file at once. What is left has to be served until whoever came in has gone.
    fn close(self) -> Option<Serving> {
        match self {
            Self::Web(web) => Some(web.close()),
            Self::Tcp(_) | Self::Unix { .. } | Self::Stdio(_) => None,
        }
    }
}

impl Stream {
    /// Tells somebody that there is no room, if they can be told at once.
    fn refuse(&self) {
        let mut line = message::error(b"null", &crowded()).to_vec();
        line.push(b'\n');
        let _ = match self {
            Self::Tcp(stream, _) => stream.try_write(&line),
            Self::Unix(stream) => stream.try_write(&line),
            // Those of the web have been told already.
            Self::Stdio | Self::Web(_) => Ok(0),
        };
    }

    /// The place among all clients that it has already.
    fn slot(&mut self) -> Option<Slot> {
        match self {
            Self::Web(newcomer) => newcomer.slot.take(),
            Self::Tcp(..) | Self::Unix(_) | Self::Stdio => None,
        }
    }

    /// Who that is. `Err`: nobody who may come in.
    async fn admit(&self, guests: &Guests) -> Result<Principal, Principal> {
        let (user, method) = match self {
            Self::Tcp(stream, from) => {
                let (from, to) = (*from, stream.local_addr());
                let asking = tokio::task::spawn_blocking(move || {
                    narrows_link::peer::user_of_connection(from, to.ok()?)
                });
                (asking.await.unwrap_or_default(), Method::SocketOwner)
            }
            Self::Unix(stream) => (stream.peer_cred().ok().map(|peer| peer.uid()), Method::UnixPeer),
            Self::Stdio => (Some(peer::of_parent()), Method::Process),
            Self::Web(newcomer) => return newcomer.admit(guests),
        };
        guests.admit(user, method)
    }

    fn into_link(self, options: &Options) -> io::Result<Link> {
        Ok(match self {
            Self::Tcp(stream, _) => {
                let (reader, writer) = stream.into_split();
                narrows_link::stream(reader, writer, &Options { guard_first_line: true, ..*options })
            }
            Self::Unix(stream) | Self::Web(Newcomer { stream, .. }) => {
                narrows_link::socket::unix(stream, options)
            }
            Self::Stdio => narrows_link::stdio::take(options)?,
        })
    }
}

impl Reception {
    /// Lets clients in at one place until we are to stop, and waits for all of them to have gone.
    async fn receive(self: Arc<Self>, mut place: Place) {
        let mut visits = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = self.leaving.wanted() => break,
                Some(_) = visits.join_next() => {}
                stream = place.accept() => match stream {
                    Ok(stream) => {
                        // Never closed, and soon free: identifying a client waits for nothing that the client sends.
                        let lookup = Arc::clone(&self.lookups).acquire_owned().await.ok();
                        visits.spawn(Arc::clone(&self).visit(stream, lookup));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "nobody can be let in for a moment");
                        sleep(REST).await;
                    }
                },
            }
        }
        let front = place.close();
        while visits.join_next().await.is_some() {}
        if let Some(front) = front {
            front.finish(&self.leaving).await;
        }
    }

    async fn visit(self: Arc<Self>, mut stream: Stream, lookup: Option<OwnedSemaphorePermit>) {
        let is_stdio = matches!(stream, Stream::Stdio);
        // Asked before anything is waited for: of one that has gone nobody can tell.
        let admitted = stream.admit(&self.host.guests).await;
        drop(lookup);
        let taken = stream.slot();
        let attended = match admitted {
            Ok(who) => match taken.map_or_else(|| self.slots.take_for(&who.id), Ok) {
                Ok(slot) => {
                    let attended = self.attend(stream, who).await;
                    drop(slot);
                    attended
                }
                Err(_) => {
                    self.refuse(stream).await;
                    Ok(())
                }
            },
            Err(stranger) => self.turn_away(stream, &stranger).await,
        };
        if let Err(failure) = attended {
            tracing::error!("{}", failure.message());
        }
        if is_stdio {
            // As with a bus: whoever has started us for themselves is done.
            self.leaving.be_over();
        }
    }

    /// One client, from its first message to its end.
    async fn attend(&self, stream: Stream, who: Principal) -> Result<(), Failure> {
        // Over HTTP and WebSocket it is counted where it comes in.
        let share = (!matches!(stream, Stream::Web(_))).then(|| self.input.share(&who.id));
        match self.first_message(stream, &Options::default(), share).await? {
            Some(client) => self.host.receive(client, who, Chain::Impossible, &self.leaving).await,
            None => Ok(()),
        }
    }

    /// Tells somebody who may not come in how to.
    async fn turn_away(&self, stream: Stream, stranger: &Principal) -> Result<(), Failure> {
        let Ok(_place) = self.not_admitted.try_acquire() else {
            stream.refuse();
            return Ok(());
        };
        if let Some(client) = self.first_message(stream, &NOT_ADMITTED_OPTIONS, None).await? {
            self.host.turn_away(stranger, client, &self.leaving).await;
        }
        Ok(())
    }

    /// Waits for the first message of a client, which stays where it is. `None`: there is none.
    async fn first_message(
        &self,
        stream: Stream,
        options: &Options,
        share: Option<InputShare>,
    ) -> Result<Option<Link>, Failure> {
        let mut client =
            stream.into_link(options).map_err(|error| Failure::setup("let a client in", &error))?;
        if let Some(share) = share {
            client.limit_input(share);
        }
        let first = self.leaving.unless(timeout(SILENCE, first_message(&mut client))).await;
        Ok(matches!(first, Some(Ok(true))).then_some(client))
    }

    /// Tells somebody that there is no room: as the answer to what they ask first, unless too many are told so.
    async fn refuse(&self, stream: Stream) {
        match self.refusals.try_acquire() {
            Ok(_place) => refuse(stream).await,
            Err(_) => stream.refuse(),
        }
    }
}

async fn refuse(stream: Stream) {
    if let Ok(mut client) = stream.into_link(&NOT_ADMITTED_OPTIONS) {
        let first = timeout(GLANCE, client.receiver.peek()).await.ok().flatten();
        let id = first.filter(|first| first.kind() == Kind::Request).and_then(Frame::id).unwrap_or(b"null");
        let _ = client.sender.push(message::error(id, &crowded()));
        client.sender.close();
        stand::drain(&client.sender).await;
    }
}

fn crowded() -> RpcError {
    RpcError::new(Problem::Backpressure, "there are too many connections")
}

/// Waits for a line that is a message, which stays where it is. What is none is answered. `false`: there is none.
async fn first_message(client: &mut Link) -> bool {
    loop {
        match client.receiver.peek().await {
            None => return false,
            Some(frame) if !matches!(frame.kind(), Kind::Invalid(_)) => return true,
            Some(_) => {}
        }
        let refusal = client.receiver.recv().await.and_then(|frame| frame.refusal());
        if let Some(answer) = refusal
            && client.sender.send(answer).await.is_err()
        {
            return false;
        }
    }
}
