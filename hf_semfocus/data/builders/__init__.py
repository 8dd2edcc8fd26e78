"""Builder classes of ``datasets``, one module each: building patches a module's ``open``, and two in one module share a cache folder."""
