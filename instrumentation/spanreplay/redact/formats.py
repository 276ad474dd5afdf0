"""Keys and tokens with a fixed format, one row each: its first characters and its pattern.

The formats are public facts (providers' documentation, the rules of open scanners). A new one is a new row.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["FORMATS", "MARKED", "Format", "Marked"]

_UUID: Final = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_END: Final = "(?![A-Za-z0-9])"
_SENTRY: Final = "sntry(?:u_[a-f0-9]{64}|s_[A-Za-z0-9+/]{20,600}={0,2}(?:_[A-Za-z0-9+/]{43})?)"

_JWT_IN_BASE64: Final = (
    *("zxlkagjhy2lpau", "zxlkmgvyqwlpau", "zxlkcmfxuwlpau"),
    *("zxlkcwezvwlpau", "zxlkcwqyc2lpau", "zxlkamria2lpau", "zxlkbgjttwlpau"),
)
"""Headers of tokens (RFC 7519) in base64, in small letters, that begin with alg, typ, kid, jku, jwk, cty or enc."""


class Format(NamedTuple):
    """Keys that begin with one of `starts` and match `pattern`; case-sensitive."""

    name: str
    starts: tuple[str, ...]
    pattern: str


class Marked(NamedTuple):
    """Keys recognised by a mark inside them, which at least `before_min` characters of the class `before` precede."""

    name: str
    marks: tuple[str, ...]
    pattern: str
    before: str = ""
    before_min: int = 0


FORMATS: Final[tuple[Format, ...]] = (
    # ── Models ──────────────────────────────────────────────────────────────────────────────────────
    Format("sk_key", ("sk_",), r"sk_(?:[a-z]{2,12}_)?(?=[A-Za-z]{0,40}[0-9])[A-Za-z0-9]{20,100}"),
    Format("perplexity_key", ("pplx-",), r"pplx-[A-Za-z0-9]{40,64}"),
    Format("groq_key", ("gsk_",), r"gsk_[A-Za-z0-9]{40,64}"),
    Format("xai_key", ("xai-",), r"xai-[A-Za-z0-9_-]{70,120}"),
    Format("replicate_token", ("r8_",), r"r8_[A-Za-z0-9]{37,40}" + _END),
    Format("fireworks_key", ("fw_",), r"fw_[A-Za-z0-9]{22,24}" + _END),
    Format("nvidia_key", ("nvapi-",), r"nvapi-[A-Za-z0-9_-]{60,70}"),
    Format("langfuse_key", ("sk-lf-", "pk-lf-"), r"[sp]k-lf-" + _UUID),
    Format("langsmith_key", ("lsv2_pt_", "lsv2_sk_"), r"lsv2_(?:pt|sk)_[0-9a-fA-F]{32}_[0-9a-fA-F]{10}"),
    Format("pinecone_key", ("pcsk_",), r"pcsk_[A-Za-z0-9]{5,6}_[A-Za-z0-9]{60,66}"),
    Format("tavily_key", ("tvly-",), r"tvly-(?:dev-|prod-)?[A-Za-z0-9]{32}"),
    Format("bedrock_short_key", ("bedrock-api-key-",), r"bedrock-api-key-[A-Za-z0-9+/]{20,400}={0,2}"),
    Format("huggingface_org_token", ("api_org_",), r"api_org_[A-Za-z0-9]{30,40}"),
    Format("cerebras_key", ("csk-",), r"csk-[a-z0-9]{48}" + _END),
    Format("together_key", ("tgp_v1_",), r"tgp_v1_[A-Za-z0-9_-]{43}"),
    Format("llama_cloud_key", ("llx-",), r"llx-[A-Za-z0-9]{44,52}" + _END),
    Format("runpod_key", ("rpa_",), r"rpa_[A-Za-z0-9]{30,46}" + _END),
    Format("wandb_key", ("wandb_v1_",), r"wandb_v1_[A-Za-z0-9_]{60,80}"),
    Format("brave_search_key", ("BSA",), r"BSA(?=[A-Za-z_-]{0,30}[0-9])(?=[A-Z0-9_-]{0,30}[a-z])[A-Za-z0-9_-]{24,40}"),
    Format("gemini_key", ("AQ.Ab8",), r"AQ\.Ab8[A-Za-z0-9_-]{40,60}"),
    Format("devin_token", ("cog_",), r"cog_[a-z2-7]{52}"),
    Format("val_town_token", ("vtwn_",), r"vtwn_[A-Za-z0-9_-]{20,80}"),
    Format("apify_token", ("apify_api_",), r"apify_api_[A-Za-z0-9]{34,38}"),
    # ── Clouds ──────────────────────────────────────────────────────────────────────────────────────
    Format("alibaba_key_id", ("LTAI",), r"LTAI[A-Za-z0-9]{12,24}" + _END),
    Format("aws_other_key_id", ("A3T",), r"A3T[A-Z0-9][A-Z2-7]{16}" + _END),
    Format("cloudflare_ca_key", ("v1.0-",), r"v1\.0-[a-f0-9]{24}-[a-f0-9]{146}"),
    Format("digitalocean_token", ("doo_v1_", "dop_v1_", "dor_v1_"), r"do[opr]_v1_[a-fA-F0-9]{64}"),
    Format("flyio_token", ("fo1_",), r"fo1_[A-Za-z0-9_-]{43}"),
    Format("heroku_key", ("HRKU-AA",), r"HRKU-AA[A-Za-z0-9_-]{58}"),
    Format("scalingo_token", ("tk-us-",), r"tk-us-[A-Za-z0-9_-]{48}"),
    Format("vercel_token", ("vcp_", "vci_", "vca_", "vcr_", "vck_"), r"vc[piark]_[A-Za-z0-9_-]{50,60}"),
    Format("supabase_token", ("sbp_", "sb_secret_"), r"(?:sbp_[a-z0-9_-]{40}|sb_secret_[A-Za-z0-9_-]{22,40})"),
    Format("yandex_token", ("t1.",), r"t1\.[A-Za-z0-9_-]{1,200}={0,2}\.[A-Za-z0-9_-]{86}={0,2}"),
    Format("yandex_key", ("AQVN",), r"AQVN[A-Za-z0-9_-]{35,38}"),
    Format("yandex_aws_key", ("YC",), r"YC(?=[A-Za-z_-]{0,37}[0-9])(?=[A-Z0-9_-]{0,37}[a-z])[A-Za-z0-9_-]{38}" + _END),
    Format("netlify_token", ("nfp_",), r"nfp_[A-Za-z0-9]{36}"),
    Format("alibaba_session_id", ("STS.",), r"STS\.[A-Za-z0-9]{16,64}"),
    Format("cloudflare_token", ("cfut_", "cfat_"), r"cf[ua]t_[A-Za-z0-9]{48}"),
    Format("cockroach_key", ("CCDB1_",), r"CCDB1_[A-Za-z0-9]{22}_[A-Za-z0-9]{40}"),
    Format("deno_token", ("ddp_", "ddo_"), r"dd[op]_[A-Za-z0-9]{36}" + _END),
    Format("elastic_cloud_key", ("essu_",), r"essu_[A-Za-z0-9_-]{60,200}={0,2}"),
    Format("exoscale_key", ("EXO",), r"EXO(?=[A-Z0-9]{0,29}[a-z])[A-Za-z0-9]{24,30}" + _END),
    Format("mongodb_service_account", ("mdb_sa_sk_", "mdb_sa_id_"), r"mdb_sa_(?:sk_[A-Za-z0-9_-]{40}|id_[a-f0-9]{24})"),
    Format("neon_key", ("napi_",), r"napi_[A-Za-z0-9]{64}"),
    Format("render_key", ("rnd_",), r"rnd_[A-Za-z0-9]{28}" + _END),
    Format("tailscale_key", ("tskey-",), r"tskey-(?:api|auth|client|scim|webhook)-[A-Za-z0-9_-]{20,64}"),
    Format("upcloud_token", ("ucat_",), r"ucat_[0-9A-Za-z]{24,32}"),
    Format("unkey_key", ("unkey_",), r"unkey_[A-Za-z0-9]{20,32}" + _END),
    Format("zuplo_key", ("zpka_",), r"zpka_[a-z0-9]{32}_[0-9a-f]{8}"),
    # ── Code, packages, builds ──────────────────────────────────────────────────────────────────────
    Format(
        "gitlab_other_token",
        ("glcbt-", "gldt-", "glffct-", "glft-", "glimt-", "glagent-", "gloas-", "glptt-", "glrt-", "glsoat-", "glrtr-"),
        r"gl[a-z]{1,6}-[A-Za-z0-9_.-]{20,}",
    ),
    Format("gitlab_runner_token", ("GR1348941",), r"GR1348941[A-Za-z0-9_-]{20}"),
    Format("pypi_test_token", ("pypi-",), r"pypi-[A-Za-z0-9_-]{50,}"),
    Format("rubygems_token", ("rubygems_",), r"rubygems_[a-f0-9]{48}"),
    Format("clojars_token", ("CLOJARS_", "clojars_"), r"(?:CLOJARS|clojars)_[A-Za-z0-9]{60}"),
    Format("nuget_key", ("oy2",), r"oy2[a-z0-9]{43}" + _END),
    Format("docker_token", ("dckr_pat_", "dckr_oat_"), r"dckr_[po]at_[A-Za-z0-9_-]{27,36}"),
    Format("artifactory_key", ("AKCp",), r"AKCp[A-Za-z0-9]{60,80}"),
    Format("artifactory_reference", ("cmVmd",), r"cmVmd[A-Za-z0-9]{59}"),
    Format("octopus_key", ("API-",), r"API-[A-Z0-9]{25,30}" + _END),
    Format("atlassian_token", ("ATAT", "ATCTT3"), r"AT(?:AT|CTT3)[A-Za-z0-9_=-]{60,}"),
    Format("bitbucket_token", ("ATBB",), r"ATBB[A-Za-z0-9]{24,40}" + _END),
    Format("launchdarkly_key", ("sdk-", "mob-", "api-"), r"(?:sdk|mob|api)-" + _UUID + _END),
    Format("postman_key", ("PMAK-",), r"PMAK-[a-fA-F0-9]{24}-[a-fA-F0-9]{34}"),
    Format("prefect_key", ("pnu_", "pnb_"), r"pn[ub]_[A-Za-z0-9]{36}"),
    Format("pulumi_token", ("pul-",), r"pul-[a-f0-9]{40}"),
    Format("readme_key", ("rdme_",), r"rdme_[a-z0-9]{70}"),
    Format("sonar_token", ("squ_", "sqp_", "sqa_"), r"sq[upa]_[a-zA-Z0-9_=-]{40}"),
    Format("sourcegraph_token", ("sgp_",), r"sgp_(?:(?:[a-fA-F0-9]{16}|local)_)?[a-fA-F0-9]{40}"),
    Format("segment_token", ("sgp_",), r"sgp_[A-Za-z0-9]{64}"),
    Format("harness_key", ("pat.", "sat."), r"[ps]at\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9]{24}\.[A-Za-z0-9]{20}"),
    Format("terraform_vault_batch", ("hvb.",), r"hvb\.[A-Za-z0-9_-]{100,300}"),
    Format("vault_token", ("hvs.", "hvr."), r"hv[sr]\.[A-Za-z0-9_-]{24,120}"),
    Format("vault_old_token", ("s.",), r"s\.(?=[A-Za-z]{0,23}[0-9])(?=[a-z0-9]{0,23}[A-Z])[A-Za-z0-9]{24}" + _END),
    Format("onepassword_key", ("A3-",), r"A3-[A-Z0-9]{6}-(?:[A-Z0-9]{11}|[A-Z0-9]{6}-[A-Z0-9]{5})(?:-[A-Z0-9]{5}){3}"),
    Format("age_key", ("AGE-SECRET-KEY-1",), r"AGE-SECRET-KEY-1[QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L]{58}"),
    Format("databricks_token", ("dapi",), r"dapi[a-h0-9]{32}(?:-[0-9])?" + _END),
    Format("doppler_token", ("dp.",), r"dp\.(?:pt|st|ct|sa|scim|audit)\.(?:[a-z0-9_-]{2,35}\.)?[A-Za-z0-9]{40,44}"),
    Format("clickhouse_key", ("4b1d",), r"4b1d[A-Za-z0-9]{38}" + _END),
    Format("aikido_key", ("AIK_",), r"AIK_(?:CI|CLIENT|SECRET)_[A-Za-z0-9]{20,64}"),
    Format(
        "buildkite_token",
        ("bkaa_", "bkaj_", "bkar_", "bkct_", "bkpt_", "bkpat_", "bkps_", "bkua_"),
        r"bk(?:a[ajr]|ct|pt|pat|ps|ua)_[A-Za-z0-9_-]{40,340}",
    ),
    Format("circleci_token", ("CCIPAT_", "CCIPRJ_"), r"CCIP(?:AT|RJ)_[A-Za-z0-9]{22}_[A-Za-z0-9]{40}"),
    Format("cloudsmith_key", ("csa_",), r"csa_[a-f0-9]{30}[A-Za-z0-9]{6}" + _END),
    Format("devcycle_key", ("dvc_",), r"dvc_(?:client|mobile|server)_[A-Za-z0-9_]{8,44}"),
    Format("ionic_token", ("ion_",), r"ion_[A-Za-z0-9]{42}" + _END),
    Format("thunderstore_token", ("tss_",), r"tss_[A-Za-z0-9_-]{20,80}"),
    Format("rootly_key", ("rootly_",), r"rootly_[a-f0-9]{64}"),
    Format("wakatime_key", ("waka_",), r"waka_[a-z0-9-]{36,64}"),
    # ── Watching ────────────────────────────────────────────────────────────────────────────────────
    Format("dynatrace_token", ("dt0c01.", "dt0s01."), r"dt0[a-z]01\.[A-Za-z0-9]{24}\.[A-Za-z0-9]{64}"),
    Format("grafana_cloud_token", ("glc_",), r"glc_[A-Za-z0-9+/]{32,400}={0,3}"),
    Format("grafana_account_token", ("glsa_",), r"glsa_[A-Za-z0-9]{32}_[A-Fa-f0-9]{8}"),
    Format("newrelic_key", ("NRJS-", "NRII-", "NRAK-", "NRRA-", "NRAA-"), r"NR[A-Z]{2}-[A-Za-z0-9-]{19,42}"),
    Format("sentry_token", ("sntryu_", "sntrys_"), _SENTRY),
    Format("infracost_key", ("ico-",), r"ico-[A-Za-z0-9]{32}"),
    Format("posthog_key", ("phc_", "phx_"), r"ph[cx]_[A-Za-z0-9_-]{40,50}"),
    # ── Sending, paying, selling ────────────────────────────────────────────────────────────────────
    Format("asaas_key", ("aact_",), r"aact_(?:prod|hmlg)_[A-Za-z0-9_-]{20,200}"),
    Format("canva_secret", ("cnvca",), r"cnvca[A-Za-z0-9_-]{51}"),
    Format("lichess_token", ("lip_",), r"lip_(?=[a-z_]{0,30}[A-Z0-9])[A-Za-z0-9_]{16,60}"),
    Format("mailersend_token", ("mlsn.",), r"mlsn\.[A-Za-z0-9]{30,100}"),
    Format("miro_token", ("eyJtaXJv",), r"eyJtaXJv[A-Za-z0-9-]{10,64}_[A-Za-z0-9_-]{20,64}"),
    Format("nylas_key", ("nyk_",), r"nyk_[A-Za-z0-9_]{60,70}"),
    Format("onesignal_token", ("os_v2_",), r"os_v2_(?:app|org)_[a-z2-7]{80,110}"),
    Format("onfido_token", ("api_live", "api_sandbox"), r"api_(?:live|sandbox)(?:_ca|_us|_eu)?\.[A-Za-z0-9_-]{20,80}"),
    Format("pinterest_token", ("pina_",), r"pina_[A-Za-z0-9_-]{20,200}"),
    Format("polar_token", ("polar_",), r"polar_[a-z]{2,4}_[A-Za-z0-9_-]{20,100}"),
    Format("proof_key", ("prf_",), r"prf_(?:cli_)?(?=[a-z_-]{0,40}[A-Z0-9])[A-Za-z0-9_-]{20,80}"),
    Format("resend_key", ("re_",), r"re_[A-Za-z0-9]{8}_[A-Za-z0-9]{24}" + _END),
    Format("samsara_token", ("samsara_api_",), r"samsara_api_[A-Za-z0-9]{26,32}"),
    Format("adobe_secret", ("p8e-",), r"p8e-[A-Za-z0-9]{32}"),
    Format("airtable_token", ("pat",), r"pat[A-Za-z0-9]{14}\.[a-f0-9]{64}"),
    Format(
        "authress_key",
        ("sc_", "ext_", "scauth_", "authress_"),
        r"(?:sc|ext|scauth|authress)_[A-Za-z0-9]{5,30}\.[A-Za-z0-9]{4,6}\.acc[_-][A-Za-z0-9-]{10,32}"
        r"\.[A-Za-z0-9+/_=-]{30,120}",
    ),
    Format("beamer_token", ("b_",), r"b_[A-Za-z0-9=_-]{44}" + _END),
    Format("defined_networking_token", ("dnkey-",), r"dnkey-[A-Za-z0-9=_-]{26}-[A-Za-z0-9=_-]{52}"),
    Format("dropbox_token", ("sl.",), r"sl\.(?:u\.)?[A-Za-z0-9_=-]{100,}"),
    Format("duffel_token", ("duffel_",), r"duffel_(?:test|live)_[A-Za-z0-9_=-]{43}"),
    Format("easypost_key", ("EZAK", "EZTK"), r"EZ[AT]K[A-Za-z0-9]{54}"),
    Format("facebook_short_token", ("EAACEdEose0cBA",), r"EAACEdEose0cBA[A-Za-z0-9]+"),
    Format("facebook_page_token", ("EAA",), r"EAA(?![A-Za-z0-9]{0,97}A{5})[A-Za-z0-9]{97,}"),
    Format("figma_token", ("figd_", "figu_", "figo_"), r"fig[duo]_[A-Za-z0-9_-]{36,50}"),
    Format("flutterwave_key", ("FLWSECK", "FLWPUBK"), r"FLW(?:SEC|PUB)K(?:_TEST)?-[A-Za-z0-9]{12,32}(?:-X)?"),
    Format("gcp_oauth_secret", ("GOCSPX-",), r"GOCSPX-[A-Za-z0-9_-]{28}"),
    Format("gocardless_token", ("live_",), r"live_[A-Za-z0-9_=-]{40}" + _END),
    Format("intra42_secret", ("s-s4t2",), r"s-s4t2(?:ud|af)-[a-fA-F0-9]{64}"),
    Format("linear_key", ("lin_api_", "lin_oauth_"), r"lin_(?:api|oauth)_[A-Za-z0-9]{40,64}"),
    Format("lob_key", ("live_", "test_"), r"(?:live|test)_(?:pub_)?[a-f0-9]{31,35}" + _END),
    Format("mailgun_key", ("key-", "pubkey-"), r"(?:pub)?key-[a-f0-9]{32}" + _END),
    Format("mapbox_token", ("pk.", "sk."), r"[ps]k\.eyJ[A-Za-z0-9_-]{50,200}\.[A-Za-z0-9_-]{20,30}"),
    Format("mapbox_old_token", ("pk.",), r"pk\.[A-Za-z0-9]{60}\.[A-Za-z0-9]{22}"),
    Format("mailgun_key", ("key-",), r"key-(?=[A-Za-z]{0,31}[0-9])(?=[0-9A-Z]{0,31}[a-z])[A-Za-z0-9]{32}" + _END),
    Format("amazon_mws_token", ("amzn.mws.",), r"amzn\.mws\." + _UUID),
    Format("gc_notify_key", ("gcntfy-",), r"gcntfy-[A-Za-z0-9_]{1,60}-" + _UUID + "-" + _UUID),
    Format("notion_token", ("ntn_", "secret_"), r"(?:ntn_[0-9]{11}[A-Za-z0-9]{35}|secret_[A-Za-z0-9]{43})" + _END),
    Format("plaid_token", ("access-",), r"access-(?:sandbox|development|production)-" + _UUID),
    Format("sendinblue_key", ("xkeysib-", "xsmtpsib-"), r"x(?:key|smtp)sib-[a-fA-F0-9]{64}-[A-Za-z0-9]{16}"),
    Format("settlemint_token", ("sm_aat_", "sm_pat_", "sm_sat_"), r"sm_[aps]at_[A-Za-z0-9]{16}"),
    Format("shippo_token", ("shippo_",), r"shippo_(?:live|test)_[a-fA-F0-9]{40}"),
    Format("shopify_token", ("shpat_", "shpca_", "shppa_", "shpss_", "shprka_"), r"shp[a-z]{2,3}_[a-fA-F0-9]{32}"),
    Format("slack_config_token", ("xoxe.xox",), r"xoxe\.xox[bp]-[0-9]-[A-Za-z0-9]{20,200}"),
    Format(
        "square_token", ("EAAA", "sq0atp-", "sq0csp-", "sq0idp-"), r"(?:EAAA|sq0[a-z]{3}-)[A-Za-z0-9_-]{22,60}" + _END
    ),
    Format("stripe_prod_key", ("sk_prod_", "rk_prod_"), r"[rs]k_prod_[A-Za-z0-9]{10,}"),
    Format("twilio_key", ("SK", "AC"), r"(?:SK|AC)[0-9a-fA-F]{32}" + _END),
    Format("typeform_token", ("tfp_",), r"tfp_[A-Za-z0-9_.=-]{40,64}"),
    Format(
        "okta_token", ("00",), r"00(?=[A-Za-z0-9_-]{0,39}[A-Z])(?=[A-Za-z0-9_-]{0,39}[a-z])[A-Za-z0-9_-]{40}" + _END
    ),
    Format(  # zeros in base64 are long runs of A, too
        "twitter_bearer",
        ("AAAAAAAAAAAAAAAAAAAAA",),
        r"(?<!A)A{21,23}(?!A)(?![A-Za-z0-9%]{0,100}A{12})"
        r"(?=[A-Za-z0-9%]{0,60}[0-9])(?=[A-Za-z0-9%]{0,60}[a-z])[A-Za-z0-9%]{80,120}",
    ),
)

MARKED: Final[tuple[Marked, ...]] = (
    Marked("gcp_refresh_token", ("1//0",), r"1//0[A-Za-z0-9_-]{40,200}"),
    Marked("confluent_key", ("cflt",), r"cflt[A-Za-z0-9+/]{56,60}"),
    Marked("openshift_token", ("sha256~",), r"sha256~[A-Za-z0-9_-]{43}"),
    Marked("flyio_macaroon", ("fm1a_", "fm1r_", "fm2_"), r"fm(?:1[ar]|2)_[A-Za-z0-9+/]{60,2000}={0,3}"),
    Marked("grafana_cloud_token", ("glc_",), r"glc_[A-Za-z0-9+/]{32,400}={0,3}"),
    Marked("azure_secret", ("q~",), r"Q~[A-Za-z0-9_~.-]{31,34}(?!\.?[A-Za-z0-9_~-])", "alnum~_.", 4),
    Marked("terraform_token", (".atlasv1.",), r"\.atlasv1\.[A-Za-z0-9_=-]{60,70}", "alnum", 14),
    Marked("maxmind_key", ("_mmk",), r"_mmk" + _END, "alnum_", 36),
    Marked("mailchimp_key", ("-us",), r"-us[0-9]{1,2}" + _END, "hex", 32),
    Marked("bedrock_key", ("absk",), r"ABSK[A-Za-z0-9+/]{80,400}={0,2}"),
    Marked("onepassword_token", ("ops_eyj",), r"ops_eyJ[A-Za-z0-9+/]{200,2000}={0,3}"),
    Marked("docker_swarm_key", ("swmtkn-1-", "swmkey-1-"), r"SWM(?:TKN|KEY)-1-[A-Za-z0-9+/-]{40,100}"),
    Marked("jwt_base64", _JWT_IN_BASE64, r"ZXlK[A-Za-z0-9+/_-]{50,8000}={0,2}"),
    Marked("grafana_key", ("eyjrijoi",), r"eyJrIjoi[A-Za-z0-9+/]{40,400}={0,3}"),
    Marked("configcat_key", ("configcat-sdk-1",), r"configcat-sdk-1/[A-Za-z0-9_-]{22}/[A-Za-z0-9_-]{22}"),
    Marked("slack_cookie", ("xoxd-",), r"xoxd-[A-Za-z0-9_/+%\\=-]{20,400}"),
    Marked("devin_key", ("apk_",), r"apk_(?:user_)?[A-Za-z0-9+/]{80,180}={0,2}"),
    Marked(
        "teams_webhook",
        (".webhook.office.com/webhookb2/",),
        r"\.webhook\.office\.com/webhookb2/" + _UUID + "@" + _UUID + r"/IncomingWebhook/[A-Za-z0-9]{32}/" + _UUID,
        "alnum",
        1,
    ),
    Marked(
        "discord_webhook",
        ("discord.com/api/webhooks/", "discordapp.com/api/webhooks/"),
        r"discord(?:app)?\.com/api/webhooks/[0-9]{17,20}/[A-Za-z0-9_-]{60,80}",
    ),
    Marked("sendgrid_other_key", ("sg.",), r"SG\.[A-Za-z0-9=_.-]{66}"),
    Marked("astra_token", ("astracs:",), r"AstraCS:[A-Za-z0-9:]{20,120}"),
    Marked("planetscale_token", ("pscale_",), r"pscale_(?:tkn|oauth|pw)_[A-Za-z0-9_=.-]{32,64}"),
    Marked("bitbucket_server_token", ("bbdc-",), r"BBDC-[A-Za-z0-9+/=]{32,80}"),
    Marked("frameio_token", ("fio-u-",), r"fio-u-[A-Za-z0-9_=-]{64}"),
    Marked("braintree_token", ("access_token$",), r"access_token\$[a-z]{4,12}\$[a-z0-9]{16}\$[a-f0-9]{32}"),
    Marked("salesforce_token", ("!",), r"![A-Za-z0-9._-]{80,260}", "alnum", 15),
    Marked("tableau_token", ("==:",), r"==:[A-Za-z0-9]{32}" + _END, "alnum+/", 22),
    Marked("gitlab_session", ("_gitlab_session=",), r"_gitlab_session=[0-9a-z]{32}"),
)
