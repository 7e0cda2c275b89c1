//! A brain that fails: one connection at most, never the loop.

use super::*;

/// Lights `fuse`, sets it off, and sees that others go on.
fn check(fuse: &str, config: Config, set_off: impl FnOnce(&Rig, &mut Peer)) -> Rig {
    let rig = Rig::new(Mode::Pairs, config);
    let (mut victim, mut other) = (rig.connect(), rig.connect());
    // Both have their workers before anything burns.
    for peer in [&mut victim, &mut other] {
        peer.say("[0]\n");
        assert_eq!(peer.hear(), "[0]\n");
    }
    victim.say(&format!("[\"fuse\",\"{fuse}\"]\n"));
    assert_eq!(victim.hear(), "[\"lit\"]\n");
    set_off(&rig, &mut victim);
    other.say("[1]\n");
    assert_eq!(other.hear(), "[1]\n", "{fuse}");
    rig
}

fn reload(rig: &Rig) {
    let listen = vec![Listen::new(Door::Tcp("127.0.0.1:0".into()))];
    rig.bus.reload(Config { listen, ..config("exec cat") }).unwrap();
}

#[test]
fn whom_a_panic_is_about_is_hung_up_on() {
    let internal = |said: String| assert!(said.contains("-32603"), "{said:?}");
    check("open", config("exec cat"), |rig, _| internal(rig.connect().rest())).finish();
    check("eof", config("exec cat"), |_, victim| {
        victim.shut();
        internal(victim.rest());
    })
    .finish();
    // A worker that came up is ended, and with it whoever waits for it.
    check("up", config("exec cat"), |rig, _| assert_eq!(rig.connect().rest(), "")).finish();
}

#[test]
fn nobody_is_harmed_if_it_is_about_nobody() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    check("status", config("exec cat"), |rig, victim| {
        assert!(runtime.block_on(rig.bus.status()).is_err());
        victim.say("[\"fuse\",\"none\"]\n");
        assert_eq!(victim.hear(), "[\"lit\"]\n");
        assert_eq!(runtime.block_on(rig.bus.status()), Ok(2));
    })
    .finish();
    check("reload", config("exec cat"), |rig, victim| {
        reload(rig);
        victim.say("[2]\n");
        assert_eq!(victim.hear(), "[2]\n");
        reload(rig);
        rig.until(|event| *event == Event::Reloaded);
    })
    .finish();
    check("drain", config("exec cat"), |_, _| {}).finish();
}

#[test]
fn a_deadline_that_cannot_be_met_is_not_tried_without_end() {
    let rig = check("tick", config("exec cat"), |rig, victim| {
        rig.until(|event| *event == Event::Ticked);
        victim.say("[2]\n");
        assert_eq!(victim.hear(), "[2]\n");
    });
    let ticks = rig.events.try_iter().filter(|event| *event == Event::Ticked).count();
    assert!(ticks < 5, "{ticks}");
    rig.finish();
}

#[test]
fn a_brain_that_waits_for_what_it_missed_does_not_keep_the_bus_from_ending() {
    let mut config = config("exec cat");
    config.limits.drain_timeout = Duration::ZERO;
    for fuse in ["gone", "ended"] {
        let rig = check(fuse, config.clone(), |_, victim| victim.shut());
        // It takes some seconds: whoever has failed once may still manage to stop.
        rig.finish();
    }
}
