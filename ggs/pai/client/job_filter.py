"""Which jobs to list."""

from collections.abc import Sequence
from dataclasses import dataclass

from ggs.errors import ConfigurationError


@dataclass(frozen=True)
class JobFilter:
    """Jobs that fit all fields; of several values in one field, any. An empty field fits all jobs.

    Raises ConfigurationError for a value with a comma, which OpenPAI would take for two.
    """

    users: Sequence[str] = ()
    """Empty: the client's own user."""
    everyone: bool = False
    """The jobs of all users; on LTP, those in one's own virtual clusters."""
    states: Sequence[str] = ()
    """WAITING, RUNNING, STOPPING, SUCCEEDED, FAILED, STOPPED."""
    virtual_clusters: Sequence[str] = ()
    tags: Sequence[str] = ()
    """Jobs with one of these tags."""
    without_tags: Sequence[str] = ()
    """Jobs with none of these tags."""
    priorities: Sequence[str] = ()
    """Of HiveD: prod, test, oppo; ``default`` for jobs that name none."""
    keyword: str = ""
    """A part of the job's, the user's or the virtual cluster's name."""

    def parameters(self, own_user: str) -> dict[str, str]:
        """The query of ``GET /jobs``.

        A user is sent unless everyone's jobs are wanted: without one, LTP lists other jobs than 1.8.1.
        """
        fields = {
            "username": () if self.everyone else self.users or (own_user,),
            "state": self.states,
            "vc": self.virtual_clusters,
            "tagsContain": self.tags,
            "tagsNotContain": self.without_tags,
            "jobPriority": self.priorities,
        }
        for values in fields.values():
            for value in values:
                if "," in value or not value:
                    raise ConfigurationError(
                        f"jobs cannot be listed by {value!r}: a filter is a text without a comma"
                    )
        query = {key: ",".join(values) for key, values in fields.items() if values}
        return query | ({"keyword": self.keyword} if self.keyword else {})
