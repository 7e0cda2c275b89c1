//! Maps a commit of the protocol's repository to a protocol version.

/// Commits of protocol releases, each with the version that `initialize` negotiates.
const RELEASES: &[(&str, u16)] = &[
    ("1b8e79850c8d007caaf2e8cc928e7ea6b2a75685", 1),
    ("0b57c6ea48b9286d24e8933a51b8370b5febe3ee", 1),
    ("d9072428412f97189bad8856f8ee6394a8dd52ef", 1),
    ("9634fea1989ab37ddb918720795c0e9aa25935af", 1),
    ("8bb4d065a89606998be61869c41b7af4b27f8c3c", 1),
    ("48b2abf1ac750fece26e03e92e773ccbd4754f5d", 1),
    ("a213df5240048f96d2b23f644984bb20c188a234", 1),
    ("d0549a115750a0a25c1c5631dd72e0d248859aa4", 1),
    ("5e89c71497fe07dd4ae633c181a17224f4a8956d", 1),
    ("272bf799f35a258c6a4107a0410ed361e83683d3", 1),
    ("355f9876344b570acf7818d89fa529319a2cc0bb", 1),
    ("94dcb05ec81060e8654a6acb4fa70695d52e79f7", 1),
    ("35d35feb3dd58969b9831c3bd5448217d0844aa3", 1),
    ("f8fa9e8cf34397a90edbb70651057a982ba71b40", 1),
    ("657228ffeec63b48f4cb913b952e1922abb0c0d3", 1),
    ("25d9c2b213de11bbca890036cc8593e3f6b6144e", 1),
    ("6a5cfd6db7dba7616b2a4a24a5f2c4baa28f1eae", 1),
    ("a39b7f635d67528f0a4e05e086ab283b9fc5cb93", 1),
    ("f5813b3ad3f72f3dee7722b25c5ac440f426dc73", 1),
    ("736ddf81af9575bf307767af55f93203b0257b58", 1),
    ("fe2fc415fa7ffd9964ee495746d0c3912f9c9a6a", 1),
    ("11f6d3c7e6f9c136f7c406a463cac5b04a9e06f6", 1),
    ("55d4166d12232631836e1e0a0ab0d12815f51228", 1),
    ("666aec6c595591233c99529211e7874cd7d046af", 1),
    ("5889c190db829346ea3617ec3481691bb700c474", 1),
    ("de424c6be8d47112c809b1e7a3ffbb05f2ece702", 1),
    ("65d26da26bbc89a776e81720c8c32d1d7b4d009c", 1),
    ("4db6388558cf7b22968bbe2ef42e4fc4f88f3944", 1),
    ("5d41c315698a9473f997498b8e12aedb6e2434f2", 1),
    ("70628c6d0fc9a44868134a737367fcf52beb2887", 1),
    ("4ac908a59c5ceff28530697e3907a7937d5af299", 1),
    ("83367966a8bc65aa0ec3469d8cc017108e0db452", 1),
    ("6cf7d7f6ad901677ee9cf687e9f79116378e3e87", 1),
    ("94015cb21acc45b93404b2f6ac0dda6d1d352402", 1),
    ("e64f4af7dbc1e705a3cd2304d18c1cfdb8b7020f", 1),
    ("c399208627443fb5234877d826c63b0a90a5f89c", 1),
    ("231b47cf5c71f3837575c9c18ebfac5a9cad308d", 1),
    ("9567f903443688e4df9c9be8d10e35231ab9b1db", 1),
    ("ad7923717ce92b958ffd012aa49173d9ec6f4324", 1),
    ("050a171ce9bf6612c133279f78f20ba2fcf7e827", 1),
    ("9e4cfdb5d98321e6d597d657b9255c00a8e7fc7b", 1),
    ("fb4f3ad8e24b9068590eb23de95c624fdbee2c4b", 1),
    ("43b8fba521171701d76c5a5aad1c7e15a6603ed7", 1),
    ("2271caefcdc7cdadeef3b5387f3db2b3d50b9cc7", 1),
    ("b78a5099122aa767e0484fae7c1c03a8c9a5715f", 1),
    ("4149e61fbf9d8105962a29b4af0a67c32a0c088f", 1),
    ("c27f52f6ba051278d5d71eeb314f7cc1b9e2fd06", 1),
    ("66b3a2627935f67a8e411c07dc4de43301e015b8", 1),
    ("f300e8f80877e9170629d020d1fdab4613f4dd11", 1),
    ("21a8206c1304b602c50c32a75a33afd7462c2853", 1),
    ("3c46ea67b896c99b516616e6200b88226092f4e1", 1),
    ("e23620fe29cb24555db8fb8b58b641b680788e5f", 1),
    ("2bb4a42b0ae645a47ce546edc8af1ea842ceb9b8", 1),
    ("3ef191cfa87774cc8850368cd2c871d784f2cc41", 1),
    ("8e3919b7ab494cf2d19326e2e17c5e7aeb15e366", 1),
    ("c534dc96be1b5c42c255956b27d0dd5034c9c14c", 1),
    ("c12410fd4504f1ec50bec1e6c3a610bcc10f3d6d", 1),
    ("b3f3b488ed6c43b7bb616641ce8201bad790298c", 1),
    ("cd18d3de8985e43794513dc5e10ac407de18af92", 1),
    ("39a7c6e936e8f9bb1cce14355054945a5b42fadd", 1),
    ("59fdb36c3520fe40109e628c48eede5a2a6204df", 1),
    ("451c3cbc7df2f9bc164c25e25d36fa526003f085", 1),
    ("37fe1019866dca43b841589bc7c7aa16b25dff1a", 1),
    ("7c990660e505c69e695dea5ac679daaef11adaee", 1),
    ("e87bde7322ceb8d52d9e81718f5783beb66f9f6d", 1),
    ("e931357254ff44573294d5cee214a269e0cd6c54", 1),
    ("da1b3a8c432c47b2e7b171548a46f0e94a848a2f", 1),
    ("bf1779d6d69d306aff4c4abf63ff625611bacd2d", 1),
    ("020a43f3d5eba9265f5f8716e04d970c6eb16ab3", 1),
    ("bb0d13123b0b49110388cdfcf4366ea6531b9115", 1),
    ("7f07ab01f049995c0dc24a28f3c4920b38add2bb", 1),
    ("da66be34366fba85e8473198924d7c682d4c5174", 1),
    ("b33c886e8cb69d9f3b4743140a08741495e0a421", 1),
    ("6c45df7e0d9492559aa5a6e078a9ef5762bd8346", 1),
    ("d42343a3446e18e7a585a809aca2d770b0291eb4", 1),
    ("ec66afe2f0f9fce4e3348b38f8007b5583e4b20f", 1),
    ("df3856f60f7cc626276694d8dda6d4a5d808fda1", 1),
    ("e22561876c59e378ea4e25a6f2d1d63313517aba", 1),
    ("d07ab2090e2029fefa2487345aa8ac97628728dd", 1),
    ("ee69b0c9b6425fa56132ef2b42d8af27da08ea71", 1),
    ("fcc8732fde2115e63cbaf3cda4bc3c76ec7d6833", 1),
    ("539bf0a5451ca2c954ca38e18d8a3f228f94119b", 1),
];

/// Returns `true` if `text` has the form of a commit: 7 to 40 lower-case hexadecimal digits.
pub(crate) fn is_revision(text: &str) -> bool {
    (7..=40).contains(&text.len()) && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns the protocol version of a revision that is a known release. Returns `None` for any other revision:
/// its version is then negotiated.
pub fn protocol_version(revision: &str) -> Option<u16> {
    if !is_revision(revision) {
        return None;
    }
    RELEASES.iter().find(|(commit, _)| commit.starts_with(revision)).map(|(_, version)| *version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_found_by_any_prefix() {
        for (commit, version) in RELEASES {
            assert!(is_revision(commit) && commit.len() == 40);
            assert_eq!(protocol_version(commit), Some(*version));
            assert_eq!(protocol_version(&commit[..7]), Some(*version));
        }
        for unknown in ["abc1234", "", "abc", "ABCDEF0", &"a".repeat(41)] {
            assert_eq!(protocol_version(unknown), None, "{unknown}");
        }
    }
}
