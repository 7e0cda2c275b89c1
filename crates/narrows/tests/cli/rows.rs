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
        "clients without a proven identity, and listeners that would admit them",
        &[
            (MATRIX, "every_route_is_refused_without_a_valid_token"),
            (MATRIX, "unsafe_listeners_are_not_bound"),
            (BUS_WEB, "a_network_listener_needs_authentication"),
            (SERVE_WEB, "local_clients_are_identified_by_the_system"),
        ],
    ),
    (
        "CB2",
        "DNS names that are made to resolve to this machine, and requests of other web pages",
        &[(MATRIX, "hosts"), (MATRIX, "only_pages_of_allowed_origins_may_read_responses")],
    ),
    (
        "CB3",
        "a WebSocket of a browser: its token is in a subprotocol, and never in the URL",
        &[
            (MATRIX, "a_browser_sends_its_token_as_a_subprotocol"),
            (MATRIX, "other_paths_and_methods"),
            (SERVE_WEB, "unlisted_hosts_and_origins_are_refused"),
        ],
    ),
    (
        "CB4",
        "ids of sessions and connections, and cursors, of other clients",
        &[
            (HOSTILE, "a_foreign_connection_is_indistinguishable_from_a_missing_one"),
            (RESUMED, "a_foreign_connection_cannot_be_resumed"),
            (IDENTITIES, "a_session_of_another_identity_is_answered_like_a_missing_one"),
            (SERVE_WEB, "clients_with_different_tokens_are_isolated"),
        ],
    ),
    (
        "CB5",
        "the same ids on several connections",
        &[(CHAOS, "a_hundred_clients_with_equal_ids_do_not_get_each_others_answers"), (SIM, "shared_by_all")],
    ),
    (
        "CB6",
        "answers to requests that another client got",
        &[(IDENTITIES, "no_client_answers_for_another_identity"), (SIM, "several_clients_on_one_session")],
    ),
    (
        "CB7",
        "messages that are long, or expand when they are decompressed",
        &[
            (SOCKETS, "close_codes"),
            (HOSTILE, "nothing_is_compressed"),
            (HOSTILE, "a_compressed_body_is_not_decompressed"),
            (UNFINISHED, "a_body_over_the_memory_limit_is_refused_and_a_short_one_is_not"),
            (UNFINISHED, "unfinished_bodies_of_one_identity_are_bounded_and_do_not_affect_others"),
            (UNFINISHED, "a_web_socket_with_an_endless_message_makes_room"),
        ],
    ),
    (
        "CB8",
        "sockets that send nothing",
        &[
            (MATRIX, "a_slow_request_head_times_out"),
            (MATRIX, "a_missing_body_times_out"),
            (LIMITS, "connections_are_counted_over_all_listeners"),
            (SOCKETS, "an_idle_connection_uses_little_memory"),
        ],
    ),
    ("CB9", "arrays of many messages", &[(SIM, "shared_by_all")]),
    (
        "CB10",
        "local sockets and other users of this machine",
        &[("crates/narrows/tests/cli/serve_listen.rs", "another_user_only_learns_how_to_authenticate")],
    ),
    (
        "F26",
        "a client that reads slowly, or not at all",
        &[
            (DRIVER, "a_client_that_reads_nothing_is_disconnected"),
            (SOCKETS, "a_client_that_does_not_read_delays_no_other_and_is_closed"),
            (SLOW, "a_slow_client_stays_and_receives_everything_once"),
        ],
    ),
    (
        "F27",
        "a client that is lost while it is asked for a permission",
        &[
            (BUS_WEB, "a_client_lost_during_a_request_has_its_turn_cancelled_and_its_session_kept"),
            (BUS_WEB, "a_resumable_client_gets_the_request_again_and_its_turn_continues"),
            (BUS_WEB, "a_resumable_client_is_closed_after_its_grace_period"),
            (WATCHING, "a_turn_continues_while_an_observer_is_connected"),
        ],
    ),
    (
        "F28",
        "a peer that vanishes without closing its socket",
        &[
            (SLOW, "a_dead_client_is_detected_in_time"),
            (SLOW, "the_kernel_gives_a_dead_socket_up_in_time"),
            ("crates/remote/src/client/connect.rs", "a_dead_host_is_detected_within_45_seconds"),
        ],
    ),
    (
        "F29",
        "a client that reconnects with a cursor",
        &[
            (REPLAY, "a_stream_that_is_cut_at_any_event_resumes_after_it"),
            (REPLAY, "messages_that_are_no_longer_kept_are_reported_as_a_gap"),
            (RESUMED, "missed_messages_are_replayed_and_received_ones_are_not"),
            (RESUMED, "resume_requests_that_are_refused"),
        ],
    ),
    (
        "F30",
        "two clients that resume one connection at the same time",
        &[
            (RESUMED, "of_two_concurrent_resumes_one_gets_everything_and_the_other_a_fence"),
            (RESUMED, "the_newest_socket_wins"),
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
