"""Study: what Python users and the command line call to run a study and to read what it found.

    from slb_autotune import Study

    study = Study.load("search_spaces/digits_demo.yaml")
    print(*study.dry_run().lines(), sep="\\n")
    session = study.run()
    print(session.result.front)

This is the one place that connects a study to its tables, its report and MLflow.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slb_autotune.config.study import StorageConfig, StudyConfig
from slb_autotune.search.records import Outcome, StudyListener, find_study, study_folder

if TYPE_CHECKING:
    import pandas as pd

    from slb_autotune.analysis.result import StudyResult
    from slb_autotune.search.plan import Plan
    from slb_autotune.tracking.recorder import MlflowRecorder

DEFAULT_RUNS = Path(StorageConfig().folder)

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Session:
    """How a session of a study ended.

    `status` is `done` or `interrupted`. `report` is the study's page, None where none was
    written. `waiting` counts the trials that MLflow could not be sent: the next session sends
    them. `note` says why the study ended, where it is not its budget.
    """

    result: StudyResult
    status: str
    seconds: float
    report: Path | None
    waiting: int
    note: str

    @property
    def interrupted(self) -> bool:
        """Whether it was stopped before its budget was spent."""
        return self.status == "interrupted"


@dataclass(frozen=True, eq=False)
class Confirmation(Session):
    """A session that trained networks again; `table` has one row per configuration."""

    table: pd.DataFrame


@dataclass(frozen=True)
class Study:
    """A study: its configuration, and what can be done with it.

    Nothing is held open: every call reads the study's folder as it is at that moment.
    """

    config: StudyConfig

    @classmethod
    def load(
        cls, source: str | Path | Mapping[str, Any], *, runs: str | Path | None = None
    ) -> Study:
        """A study by its name in the run folder, from a YAML file, or from a mapping.

        A string that ends in `.yaml` or `.yml` is a file, any other one a name. `runs` is the run
        folder: by default `slb-runs`, or what the file or the mapping says. A study's folder may
        be moved to another run folder and is read and resumed there.
        """
        if isinstance(source, Mapping):
            config = StudyConfig.from_mapping(source)
        elif isinstance(source, Path) or source.endswith((".yaml", ".yml")):
            config = StudyConfig.from_file(Path(source))
        else:
            runs = DEFAULT_RUNS if runs is None else runs
            config = StudyConfig.from_file(find_study(Path(runs), source) / "study.yaml")
        if runs is not None and Path(runs).absolute() != Path(config.storage.folder).absolute():
            config = _changed(config, "storage", {"folder": str(runs)})
        return cls(config)

    @property
    def runs(self) -> Path:
        """The run folder."""
        return Path(self.config.storage.folder)

    @property
    def folder(self) -> Path:
        """The study's own folder in the run folder."""
        return study_folder(self.runs, self.config.name)

    @property
    def exists(self) -> bool:
        """Whether the study has been run, to its end or not."""
        return (self.folder / "study.yaml").exists()

    @property
    def result(self) -> StudyResult:
        """What the study has found so far, also while another process runs it."""
        from slb_autotune.analysis.result import current_result

        return current_result(self.runs, self.config.name)

    def dry_run(self) -> Plan:
        """What the study would take, from a few measured steps of training; writes nothing."""
        from slb_autotune.search.plan import plan

        return plan(self.config)

    def run(self, view: StudyListener | None = None) -> Session:
        """Run a new study to the end of its budget, or until Ctrl-C; `view` follows it."""
        return self._session(view, resume=False)

    def resume(
        self,
        trials: int | None = None,
        seconds: float | None = None,
        view: StudyListener | None = None,
        *,
        failed: bool = False,
    ) -> Session:
        """Resume a study that was stopped or killed; `trials` and `seconds` are budgets in all.

        The configuration is that of the last session, not that of a file changed since. With
        `failed`, failed trials are trained again.
        """
        asked = {"trials": trials, "seconds": seconds}
        budget = {name: value for name, value in asked.items() if value is not None}
        config = self._last_run().config
        return Study(_changed(config, "budget", budget))._session(
            view, resume=True, retry_failed=failed
        )

    def confirm(
        self,
        seeds: int = 3,
        epochs: int | None = None,
        *,
        points: bool | None = None,
        view: StudyListener | None = None,
    ) -> Confirmation:
        """Train the front again with several seeds on all training data, and test it.

        With `points`, every listed point of the study is trained instead, which needs no search:
        that is the default for a study with points that has not been run. A confirmation that was
        stopped is resumed.
        """
        from slb_autotune.analysis.confirmed import confirmed_table, score_table
        from slb_autotune.search.confirm import confirm_front, confirm_points

        if points is None:
            points = bool(self.config.points) and not self.exists
        if points:
            search = None
            config = confirm_points(self.config, seeds, epochs)
        else:
            search = self.result
            front = [search.config_of(int(trial)) for trial in search.front["trial"]]
            config = confirm_front(self._last_run().config, front, seeds, epochs)
        study = Study(config)
        session = study._session(view, resume=study.exists)
        found = session.result
        table = score_table(found) if search is None else confirmed_table(search, found)
        return Confirmation(**vars(session), table=table)

    def report(self, *, layer: str | None = None, picture: int = 1) -> Path:
        """Write the study's page into its folder; the page's path.

        `layer` is the one whose weights are shown, by default the largest; `picture` is the one
        on which super-resolution is shown.
        """
        from slb_autotune.report.study_report import write_study_report

        return write_study_report(
            self.result, self.folder / "report", layer=layer, picture=picture
        )

    def _last_run(self) -> Study:
        """The study as it was last run, wherever its folder is now."""
        config = StudyConfig.from_file(find_study(self.runs, self.config.name) / "study.yaml")
        return Study(_changed(config, "storage", {"folder": str(self.runs)}))

    def _session(
        self, view: StudyListener | None, *, resume: bool, retry_failed: bool = False
    ) -> Session:
        """Run the study with its listeners: on_end is called in this order, and MLflow is last."""
        from slb_autotune.analysis.result import study_result
        from slb_autotune.search.driver import run_study
        from slb_autotune.tracking.recorder import make_recorder

        recorder = make_recorder(self.config)
        writer = _ResultWriter(recorder)
        listeners = [one for one in (view, writer, recorder) if one is not None]
        outcome = run_study(self.config, listeners, resume=resume, retry_failed=retry_failed)
        return Session(
            result=writer.result or study_result(outcome.study),
            status=outcome.status,
            seconds=outcome.seconds,
            report=writer.page,
            waiting=0 if recorder is None else recorder.waiting,
            note=outcome.note,
        )


class _ResultWriter(StudyListener):
    """Saves a study's tables and writes its report at the end of a session.

    All trials are safe by then: whatever fails here is logged and ends nothing.
    """

    def __init__(self, recorder: MlflowRecorder | None) -> None:
        self.recorder = recorder
        self.result: StudyResult | None = None
        self.page: Path | None = None

    def on_end(self, outcome: Outcome) -> None:
        from slb_autotune.analysis.result import FOLDER, save_result, study_result

        study = outcome.study
        with _logged("the study's tables could not be saved", study.config.name):
            self.result = study_result(study)
            save_result(self.result, study.folder / FOLDER)
        if self.result is not None and not outcome.interrupted:
            with _logged("the report could not be written", study.config.name):
                self._write_report(self.result, study.folder / "report")

    def _write_report(self, result: StudyResult, folder: Path) -> None:
        from slb_autotune.report.recorded import recorded_files
        from slb_autotune.report.study_report import write_study_report

        self.page = write_study_report(result, folder)
        for path in recorded_files(result, self.page):
            if self.recorder is not None:
                self.recorder.attach(path)


@contextmanager
def _logged(what: str, study: str) -> Iterator[None]:
    """Log an error in one sentence and continue."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        log.warning("%s: %s; `slb-autotune report %s` tries again.", what, reason, study)


def _changed(config: StudyConfig, section: str, changes: Mapping[str, Any]) -> StudyConfig:
    """The study with changes to one of its sections, checked."""
    whole = {**getattr(config, section).model_dump(), **changes}
    return StudyConfig.from_mapping({**config.to_mapping(), section: whole})
