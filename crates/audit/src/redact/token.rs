//! Prefixes that issuers have defined for their tokens, and other forms of tokens.

/// Prefixes of tokens, each with the minimum number of characters that follow. `narrows token` uses the
/// prefix `nrw_`. The list is sorted, because prefixes are looked up by their first byte.
pub(super) const TOKENS: &[(&str, usize)] = &[
    ("1//0", 30),
    ("ABIA", 16),
    ("ABSK", 40),
    ("ACCA", 16),
    ("AGE-SECRET-KEY-", 20),
    ("AIza", 30),
    ("AKIA", 16),
    ("AKID", 32),
    ("ASIA", 16),
    ("ATATT3", 20),
    ("ATBB", 20),
    ("ATCTT3", 20),
    ("CCIPAT_", 16),
    ("EAAC", 40),
    ("GOCSPX-", 16),
    ("LTAI", 16),
    ("NRAK-", 16),
    ("PMAK-", 20),
    ("PMAT-", 20),
    ("SG.", 30),
    ("api_org_", 20),
    ("atlasv1.", 20),
    ("bedrock-api-key-", 20),
    ("csk-", 20),
    ("dapi", 32),
    ("dckr_oat_", 16),
    ("dckr_pat_", 16),
    ("doo_v1_", 16),
    ("dop_v1_", 16),
    ("dor_v1_", 16),
    ("dp.ct.", 16),
    ("dp.pt.", 16),
    ("dp.sa.", 16),
    ("dp.scim.", 16),
    ("dp.st.", 16),
    ("dt0c01.", 20),
    ("eyJ", 30),
    ("figd_", 16),
    ("fm2_", 20),
    ("gho_", 20),
    ("ghp_", 20),
    ("ghr_", 20),
    ("ghs_", 20),
    ("ghu_", 20),
    ("github_pat_", 20),
    ("glagent-", 16),
    ("glc_", 16),
    ("glcbt-", 16),
    ("gldt-", 16),
    ("glffct-", 16),
    ("glft-", 16),
    ("glimt-", 16),
    ("gloas-", 16),
    ("glpat-", 16),
    ("glptt-", 16),
    ("glrt-", 16),
    ("glsa_", 16),
    ("glsoat-", 16),
    ("glwt-", 16),
    ("gsk_", 20),
    ("hf_", 20),
    ("hvb.", 20),
    ("hvr.", 20),
    ("hvs.", 20),
    ("lin_api_", 16),
    ("lin_oauth_", 16),
    ("lsv2_pt_", 16),
    ("lsv2_sk_", 16),
    ("nfp_", 20),
    ("npm_", 30),
    ("nrw_", 16),
    ("ntn_", 20),
    ("nvapi-", 20),
    ("ops_eyJ", 20),
    ("pat-eu1-", 20),
    ("pat-na1-", 20),
    ("pcsk_", 20),
    ("phx_", 20),
    ("pplx-", 20),
    ("pscale_oauth_", 16),
    ("pscale_pw_", 16),
    ("pscale_tkn_", 16),
    ("pul-", 30),
    ("pypi-", 30),
    ("r8_", 30),
    ("rk_live_", 16),
    ("rk_test_", 16),
    ("rpa_", 30),
    ("rubygems_", 20),
    ("sb_secret_", 16),
    ("sbp_", 20),
    ("secret_", 40),
    ("sgp_", 30),
    ("shpat_", 16),
    ("shpca_", 16),
    ("shppa_", 16),
    ("shpss_", 16),
    ("sk-", 16),
    ("sk_live_", 16),
    ("sk_test_", 16),
    ("sl.", 40),
    ("sntrys_", 20),
    ("sntryu_", 20),
    ("sq0atp-", 16),
    ("sq0csp-", 16),
    ("tfp_", 30),
    ("tskey-", 16),
    ("tvly-", 16),
    ("vca_", 20),
    ("vcp_", 20),
    ("whsec_", 16),
    ("xai-", 30),
    ("xapp-", 10),
    ("xoxa-", 10),
    ("xoxb-", 10),
    ("xoxc-", 10),
    ("xoxd-", 10),
    ("xoxe-", 10),
    ("xoxe.", 10),
    ("xoxp-", 10),
    ("xoxr-", 10),
    ("xoxs-", 10),
    ("xwfp-", 10),
    ("ya29.", 20),
];

/// First letters of tokens that are recognized by their whole form, not by a prefix of [`TOKENS`].
pub(super) const SHAPE_STARTS: &str = "MNOkp";

/// Minimum lengths of the three parts of a Discord bot token: a number, a time and a signature.
const DISCORD_PARTS: [usize; 3] = [23, 6, 27];

const MAX_DISCORD_BYTES: usize = 100;

/// Returns `true` if a token begins here that is recognized by its whole form, not by a prefix of [`TOKENS`].
pub(super) fn has_shape(rest: &[u8]) -> bool {
    match rest.first() {
        Some(b'M' | b'N' | b'O') => is_discord(rest),
        Some(b'k') => rest.strip_prefix(b"key").is_some_and(is_airtable_key),
        Some(b'p') => rest.strip_prefix(b"pat").is_some_and(is_airtable_token),
        _ => false,
    }
}

/// Length of an old Airtable key without `key`, and of the first part of an Airtable token without `pat`.
const AIRTABLE_BYTES: usize = 14;
const AIRTABLE_SIGNATURE_BYTES: usize = 64;

/// Minimum number of changes between letters and digits in an old Airtable key. Names in program code have
/// fewer.
const MIN_AIRTABLE_CHANGES: usize = 6;

/// Returns `true` if this is an Airtable token: letters and digits, a dot, and a hexadecimal signature.
fn is_airtable_token(rest: &[u8]) -> bool {
    let Some((number, [b'.', signature @ ..])) = rest.split_at_checked(AIRTABLE_BYTES) else { return false };
    number.iter().all(u8::is_ascii_alphanumeric)
        && signature
            .get(..AIRTABLE_SIGNATURE_BYTES)
            .is_some_and(|part| part.iter().all(u8::is_ascii_hexdigit))
}

/// Returns `true` if the whole word is an old Airtable key.
fn is_airtable_key(rest: &[u8]) -> bool {
    let Some((number, behind)) = rest.split_at_checked(AIRTABLE_BYTES) else { return false };
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    let kind = |byte: &u8| (byte.is_ascii_digit(), byte.is_ascii_uppercase());
    number.iter().all(u8::is_ascii_alphanumeric)
        && number.iter().any(u8::is_ascii_digit)
        && !behind.first().is_some_and(is_part)
        && number.windows(2).filter(|pair| kind(&pair[0]) != kind(&pair[1])).count() >= MIN_AIRTABLE_CHANGES
}

/// Returns `true` if a token of a Discord bot begins here: `M….….…`, with digits in each long part.
fn is_discord(rest: &[u8]) -> bool {
    let is_part = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    let length = rest.iter().take(MAX_DISCORD_BYTES).take_while(is_part).count();
    let mut parts = rest[..length].split(|byte| *byte == b'.');
    let mut is_there = |least: usize| {
        parts
            .next()
            .is_some_and(|part| part.len() >= least && (least < 8 || part.iter().any(u8::is_ascii_digit)))
    };
    DISCORD_PARTS.into_iter().all(&mut is_there)
}

/// Finds client secrets of Azure, which begin with three letters, a digit and `Q~`.
pub(super) fn azure_secrets(text: &str, found: &mut Vec<std::ops::Range<usize>>) {
    const BEFORE: usize = 4;
    const LEAST: usize = 30;
    let bytes = text.as_bytes();
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'~');
    let mut done = 0;
    for (at, sign) in text.match_indices("Q~") {
        let Some(begin) = at.checked_sub(BEFORE).filter(|begin| *begin >= done) else { continue };
        let behind = &bytes[at + sign.len()..];
        let is_there = bytes[begin..at].iter().all(is_part)
            && bytes[at - 1].is_ascii_digit()
            && behind.len() >= LEAST
            && behind[..LEAST].iter().all(is_part);
        if is_there {
            done = at + sign.len() + behind.iter().take_while(|byte| is_part(byte)).count();
            found.push(begin..done);
        }
    }
}
