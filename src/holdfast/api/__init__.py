from holdfast.api import deferred as deferred
