//! Faults between clients and Narrows, and the tests that cover them.

use std::path::Path;

/// The number of a row, its topic, and its tests with their files, relative to the root of the repository.
type Row = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

const MATRIX: &str = "crates/remote/src/server/tests/matrix.rs";
const UNFINISHED: &str = "crates/remote/src/server/tests/unfinished.rs";
const HOSTILE: &str = "crates/remote/src/server/tests/hostile.rs";
const RESUMED: &str = "crates/remote/src/server/tests/resumed.rs";
const REPLAY: &str = "crates/remote/src/server/tests/replay.rs";
const SOCKETS: &str = "crates/remote/src/server/tests/sockets.rs";
const SLOW: &str = "crates/remote/src/server/tests/slow.rs";
const LIMITS: &str = "crates/remote/src/server/tests/limits.rs";
const IDENTITIES: &str = "crates/bus/src/core/tests/identities.rs";
const WATCHING: &str = "crates/bus/src/core/tests/observers.rs";
const DRIVER: &str = "crates/bus/tests/driver/clients.rs";
const SIM: &str = "crates/bus/tests/sim/main.rs";
const CHAOS: &str = "crates/bus/tests/chaos/main.rs";
const BUS_WEB: &str = "crates/narrows/tests/cli/bus_web.rs";
const SERVE_WEB: &str = "crates/narrows/tests/cli/serve_web.rs";

const ROWS: &[Row] = &[
    (
        "CB1",
        "who comes in without a proof, and where others could",
        &[
            (MATRIX, "without_a_token_every_row_is_closed"),
            (MATRIX, "what_must_not_be_bound_is_not"),
            (BUS_WEB, "a_network_listener_needs_authentication"),
            (SERVE_WEB, "local_clients_are_identified_by_the_system"),
        ],
    ),
    (
        "CB2",
        "names that are made to lead here, and forms of other pages",
        &[(MATRIX, "hosts"), (MATRIX, "pages_of_allowed_origins_may_read_what_they_get_and_others_not")],
    ),
    (
        "CB3",
        "a WebSocket of a browser; its token is a protocol and no ticket, and never in the address",
        &[
            (MATRIX, "a_browser_shows_its_token_as_a_protocol"),
            (MATRIX, "other_paths_and_methods"),
            (SERVE_WEB, "unlisted_hosts_and_origins_are_refused"),
        ],
    ),
    (
        "CB4",
        "names of sessions, connections and cursors of others",
        &[
            (HOSTILE, "a_connection_of_another_is_as_unknown_as_none_whatever_is_asked_of_it"),
            (RESUMED, "somebody_elses_is_unknown"),
            (IDENTITIES, "what_is_anothers_is_answered_like_what_is_not_there"),
            (SERVE_WEB, "clients_with_different_tokens_are_isolated"),
        ],
    ),
    (
        "CB5",
        "the same ids on several connections",
        &[(CHAOS, "a_hundred_clients_that_count_alike_do_not_meet"), (SIM, "shared_by_all")],
    ),
    (
        "CB6",
        "answers to what somebody else was asked",
        &[(IDENTITIES, "nobody_answers_for_another"), (SIM, "several_clients_on_one_session")],
    ),
    (
        "CB7",
        "messages that are long, or grow",
        &[
            (SOCKETS, "codes_of_ends"),
            (HOSTILE, "nothing_is_compressed"),
            (HOSTILE, "a_body_that_would_grow_is_not_unpacked"),
            (UNFINISHED, "a_body_for_which_there_is_no_room_is_refused_and_a_short_one_is_not"),
            (UNFINISHED, "unfinished_bodies_of_one_identity_are_bounded_and_leave_others_alone"),
            (UNFINISHED, "a_web_socket_whose_message_does_not_end_makes_room_when_there_is_none"),
        ],
    ),
    (
        "CB8",
        "sockets that say nothing",
        &[
            (MATRIX, "a_slow_head_is_not_waited_for"),
            (MATRIX, "a_body_that_does_not_come_is_not_waited_for"),
            (LIMITS, "connections_are_counted_over_all_listeners"),
            (SOCKETS, "a_connection_on_which_nothing_moves_is_small"),
        ],
    ),
    ("CB9", "arrays of many messages", &[(SIM, "shared_by_all")]),
    (
        "CB10",
        "sockets of this machine and other users",
        &[("crates/narrows/tests/cli/serve_listen.rs", "another_user_only_learns_how_to_authenticate")],
    ),
    (
        "F26",
        "somebody who reads slowly, or not at all",
        &[
            (DRIVER, "a_reader_that_takes_nothing_is_disconnected"),
            (SOCKETS, "who_does_not_read_holds_up_nobody_else_and_is_gone_in_the_end"),
            (SLOW, "who_is_slow_but_there_stays_and_gets_everything_once"),
        ],
    ),
    (
        "F27",
        "somebody who vanishes while asked for a permission",
        &[
            (BUS_WEB, "a_client_lost_during_a_request_has_its_turn_cancelled_and_its_session_kept"),
            (BUS_WEB, "a_resumable_client_gets_the_request_again_and_its_turn_continues"),
            (BUS_WEB, "a_resumable_client_is_closed_after_its_grace_period"),
            (WATCHING, "a_turn_goes_on_while_somebody_watches"),
        ],
    ),
    (
        "F28",
        "a peer that is gone without a word",
        &[
            (SLOW, "who_is_gone_without_a_word_is_noticed_in_time"),
            (SLOW, "a_socket_is_given_up_by_the_system_in_time"),
            ("crates/remote/src/client/connect.rs", "a_host_that_is_gone_is_given_up_within_45_seconds"),
        ],
    ),
    (
        "F29",
        "somebody who comes back with a cursor",
        &[
            (REPLAY, "a_stream_that_is_cut_at_any_event_goes_on_behind_it"),
            (REPLAY, "what_is_no_longer_kept_is_said_to_be_lost"),
            (RESUMED, "what_was_missed_comes_again_and_what_was_taken_does_not"),
            (RESUMED, "what_cannot_be_resumed"),
        ],
    ),
    (
        "F30",
        "two who come back at once",
        &[
            (RESUMED, "of_two_that_come_back_at_once_one_has_it_all_and_the_other_is_told"),
            (RESUMED, "the_newest_wins"),
        ],
    ),
];

#[test]
fn every_row_has_its_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (row, about, tests) in ROWS {
        assert!(!tests.is_empty(), "{row}: {about}");
        for (file, test) in *tests {
            let text = std::fs::read_to_string(root.join(file)).expect(file);
            assert!(text.contains(&format!("fn {test}(")), "{row}, {about}: {file} has no {test}");
        }
    }
    let numbers: Vec<String> = (1..=10)
        .map(|number| format!("CB{number}"))
        .chain((26..=30).map(|number| format!("F{number}")))
        .collect();
    assert_eq!(ROWS.iter().map(|(row, ..)| *row).collect::<Vec<_>>(), numbers);
}
