//! A panic of the router ends at most one connection, and never the event loop.

use super::*;

/// Makes the router panic at `panic_at`, and checks that another client continues.
fn check(panic_at: &str, config: Config, set_off: impl FnOnce(&Rig, &mut Peer)) -> Rig {
    let rig = Rig::new(Mode::Pairs, config);
    let (mut victim, mut other) = (rig.connect(), rig.connect());
    // Both clients have their workers before the panic.
    for peer in [&mut victim, &mut other] {
        peer.send("[0]\n");
        assert_eq!(peer.read_line(), "[0]\n");
    }
    victim.send(&format!("[\"fuse\",\"{panic_at}\"]\n"));
    assert_eq!(victim.read_line(), "[\"lit\"]\n");
    set_off(&rig, &mut victim);
    other.send("[1]\n");
    assert_eq!(other.read_line(), "[1]\n", "{panic_at}");
    rig
}

fn reload(rig: &Rig) {
    let listen = vec![ListenerSettings::new(ListenAddr::Tcp("127.0.0.1:0".into()))];
    rig.bus.reload(Config { listen, ..config("exec cat") }).unwrap();
}

#[test]
fn a_panic_closes_the_client_that_caused_it() {
    let internal = |said: String| assert!(said.contains("-32603"), "{said:?}");
    check("open", config("exec cat"), |rig, _| internal(rig.connect().read_rest())).finish();
    check("eof", config("exec cat"), |_, victim| {
        victim.shut();
        internal(victim.read_rest());
    })
    .finish();
    // A worker that has just started is ended, and so is the client that waits for it.
    check("up", config("exec cat"), |rig, _| assert_eq!(rig.connect().read_rest(), "")).finish();
}

#[test]
fn a_panic_about_no_client_closes_no_connection() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    check("status", config("exec cat"), |rig, victim| {
        assert!(runtime.block_on(rig.bus.status()).is_err());
        victim.send("[\"fuse\",\"none\"]\n");
        assert_eq!(victim.read_line(), "[\"lit\"]\n");
        assert_eq!(runtime.block_on(rig.bus.status()), Ok(2));
    })
    .finish();
    check("reload", config("exec cat"), |rig, victim| {
        reload(rig);
        victim.send("[2]\n");
        assert_eq!(victim.read_line(), "[2]\n");
        reload(rig);
        rig.until(|event| *event == Event::Reloaded);
    })
    .finish();
    check("drain", config("exec cat"), |_, _| {}).finish();
}

#[test]
fn a_timer_that_panics_is_not_run_without_pause() {
    let rig = check("tick", config("exec cat"), |rig, victim| {
        rig.until(|event| *event == Event::Ticked);
        victim.send("[2]\n");
        assert_eq!(victim.read_line(), "[2]\n");
    });
    let ticks = rig.events.try_iter().filter(|event| *event == Event::Ticked).count();
    assert!(ticks < 5, "{ticks}");
    rig.finish();
}

#[test]
fn a_router_that_missed_an_event_does_not_block_the_end_of_the_bus() {
    let mut config = config("exec cat");
    config.limits.drain_timeout = Duration::ZERO;
    for panic_at in ["gone", "ended"] {
        let rig = check(panic_at, config.clone(), |_, victim| victim.shut());
        // This takes some seconds, because a router that has panicked once may still manage to drain.
        rig.finish();
    }
}
