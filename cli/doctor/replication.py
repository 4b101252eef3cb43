"""``tandemmq doctor replication``: check the settings of a node of a replicated set."""

from __future__ import annotations

import json
import sys

import click

from tandemmq.cli.config import WrongSettings, load_settings
from tandemmq.cli.doctor.report import Report, Verdict, as_lines
from tandemmq.cli.doctor.set_checks import examine
from tandemmq.cli.failures import EXIT_FAILED
from tandemmq.cli.output import json_option
from tandemmq.config.errors import SettingsError


@click.command()
@click.option("--config", metavar="FILE", envvar="TANDEMMQ_CONFIG", help="Settings file of the node (TOML).")
@click.option("--set", "overrides", metavar="SECTION.KEY=VALUE", multiple=True, help="Any setting; repeatable.")
@json_option
def replication(config: str | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Check the settings of a node of a replicated set, on its host: token, bind, hostname, ZooKeeper, members.

    Run it before the node starts; beside a running one it only reports that the address is in use. It changes nothing
    and joins no set. Exits with 1 if a check fails; a warning is not a failure.
    """
    settings = load_settings(config, overrides)
    options = settings.replication
    if options is None:
        raise click.UsageError("these settings have no table [replication]: there is no set")
    try:
        checks = list(examine(options, settings.broker.name))
    except SettingsError as error:
        raise WrongSettings(str(error)) from error
    node, of = options.node_name, settings.broker.name
    report = Report(settings.store.directory, "", checks)
    if as_json:
        shown = report.as_json()
        click.echo(json.dumps({"node": node, "set": of, "verdict": shown["verdict"], "checks": shown["checks"]}))
    else:
        click.echo("\n".join([f"{node}, of the set {of}", "", *as_lines(checks)]))
    sys.exit(EXIT_FAILED if report.verdict is Verdict.FAIL else 0)
